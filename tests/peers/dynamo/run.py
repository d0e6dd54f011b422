"""The twin beside Dynamo's offline replay: one trace, step times fitted to the replay, round robin on both sides.

    python tests/peers/dynamo/run.py [--cache DIR] [--python PATH]

256 conversations of 4 turns in 24 groups, about 3,000 tokens in and 32 out, four fifths shared within a group, on 8
workers of 1,536 blocks of 16 tokens, 64 at once. Cached share and duration must agree within 5 %. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.steptime.shape import Prediction, StepShape
from tokenmill.engine.config import EngineConfig
from tokenmill.operations.config import OperationsConfig
from tokenmill.sim.kinds import worker_kind
from tokenmill.sim.network import NetworkConfig
from tokenmill.sim.twin import Twin, TwinConfig
from tokenmill.workloads.conductor import ClosedLoop, Conductor
from tokenmill.workloads.trace import BLOCK_TOKENS, read_trace

PINS = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
NEEDS = (
    *("pydantic<=2.13.5", "uvloop", "aiohttp<4", "msgspec", "prometheus-client<1", "pyzmq>=26", "redis<9", "tqdm"),
    *("transformers", "typing-extensions", "zstandard<1", "kubernetes<33,>=32.0.1"),
)
SETTINGS = {"num_workers": 8, "num_blocks": 1536, "block_size": 16, "trace_block_size": BLOCK_TOKENS, "concurrency": 64}
SESSIONS, TURNS, GROUPS, OSL, GAP_MS = 256, 4, 24, 32, 80
BOUND = 0.05


@dataclass(frozen=True, slots=True)
class TableStepTime:
    """Seconds by prompt rows plus seconds by context of the decodes, each read off between measured points."""

    prefill: list[list[float]]
    decode: list[list[float]]

    def step_s(self, shape: StepShape) -> float:
        seconds = _read(self.prefill, shape.num_prefill_tokens) if shape.num_prefill_tokens else 0.0
        return seconds + (_read(self.decode, shape.decode_context_sum) if shape.num_decode_seqs else 0.0)

    def seconds(self, shape: StepShape) -> Prediction:
        return Prediction(self.step_s(shape), self.step_s(shape), self.step_s(shape))

    def decode_seconds(self, batch: int, context_sum: float, num_steps: int = 1, num_draft_tokens: int = 0) -> float:
        return num_steps * self.step_s(StepShape.decode(batch, context_sum + batch * (num_steps - 1) / 2))


def _read(table: list[list[float]], value: float) -> float:
    """Linear between points, and along the last two beyond them."""
    at = min(max(bisect_right([x for x, _ in table], value), 1), len(table) - 1)
    (low, below), (high, above) = table[at - 1], table[at]
    return below + (above - below) * (value - low) / (high - low)


def write_trace(path: Path) -> None:
    """Turn k's prompt is turn k-1's with a block of 512 tokens behind it; no answer is part of a prompt."""
    rng, next_id, lines = Random(3), 0, []
    fronts = [[next_id + 5 * group + index for index in range(5)] for group in range(GROUPS)]
    next_id = 5 * GROUPS
    for session in range(SESSIONS):
        blocks = list(fronts[rng.randrange(GROUPS)])
        for turn in range(TURNS):
            blocks = [*blocks, next_id]
            next_id += 1
            line = {"session_id": f"s{session}", "input_length": BLOCK_TOKENS * len(blocks), "output_length": OSL}
            line |= {"hash_ids": blocks}
            line |= {"delay": GAP_MS} if turn else {"timestamp": 0}
            lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_twin(trace: Path, times: TableStepTime) -> dict[str, float]:
    engine = EngineConfig(max_num_seqs=256, max_num_batched_tokens=8192, block_size=16, enable_inflight_sharing=False)
    budget_bytes = SETTINGS["num_blocks"] * SETTINGS["block_size"] * 1024
    size = {"name": "m", "vocab_size": 32000, "max_model_len": 16384, "budget_bytes": budget_bytes}
    kind = worker_kind(engine, times, SETTINGS["num_workers"], load_s=0.0, **size)
    config = TwinConfig(
        (kind,),
        OperationsConfig(router="round_robin"),
        DeviceRate(1.0, 1.0),
        NetworkConfig(latency_s=0.0, bytes_per_s=1e15),
    )
    twin = Twin(config, Conductor(read_trace(trace), ClosedLoop(SETTINGS["concurrency"])))
    twin.run()
    records = twin.load.records
    assert all(record.is_ok for record in records), "the twin failed requests"
    ttft = sorted(record.ttft_s or 0.0 for record in records)
    return {
        "cached_share": sum(r.num_cached_tokens for r in records) / sum(r.num_prompt_tokens for r in records),
        "duration_s": twin.end_s - twin.start_s,
        "num_requests": len(records),
        "ttft_s_p50": ttft[len(ttft) // 2],
    }


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenmill-peers" / "dynamo"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=cache, help="where its environment is kept")
    parser.add_argument("--python", type=Path, help="of an environment that has it already")
    args = parser.parse_args()
    python = args.python or _installed(args.cache)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(trace)
        script = Path(__file__).with_name("replay.py")
        command = [str(python), str(script), str(trace), json.dumps(SETTINGS)]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
        theirs = json.loads(told.strip().splitlines()[-1])
        ours = run_twin(trace, TableStepTime(theirs["prefill"], theirs["decode"]))
    report = theirs["report"]
    peer = {
        "cached_share": report["prefix_cache_reused_ratio"],
        "duration_s": report["duration_ms"] / 1e3,
        "num_requests": report["completed_requests"],
        "ttft_s_p50": report["median_ttft_ms"] / 1e3,
    }
    off = {name: ours[name] / peer[name] - 1 for name in ("cached_share", "duration_s")}
    is_ok = all(abs(value) <= BOUND for value in off.values()) and ours["num_requests"] == peer["num_requests"]
    print(json.dumps({"peer": "dynamo", "pins": PINS, "dynamo": peer, "twin": ours, "off": off, "is_ok": is_ok}))
    return 0 if is_ok else 1


def _installed(cache: Path) -> Path:
    """Without aisimulate, which it names as a dependency and which replays do not need."""
    python = cache / "bin" / "python"
    if not (cache / ".ok").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(cache)], check=True, timeout=300)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", *PINS], check=True, timeout=1200)
        subprocess.run([*pip, *NEEDS], check=True, timeout=1200)
        (cache / ".ok").touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
