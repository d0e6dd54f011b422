"""`bench overhead`: which part of a decode step is not the model: planning, batch, draw, update, deltas, frames.

Seconds are CPU time of the engine's thread, so that other processes disturb little. Not responsible for: printing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenmill.bench.environment import describe_environment
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import Request, SamplingParams, TokenDelta
from tokenmill.core.wire import StepFrame, encode
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.load import load_engine
from tokenmill.models.store import resolve_model
from tokenmill.workloads.prompts import token_prompts

#: (what it is called in the result, owner, its method): owners are reached from the engine.
_PARTS = (
    ("schedule", "_scheduler", "schedule"),
    ("batch", "_runner", "_build_batch"),
    ("forward", "_runner", "_forward"),
    ("draw", "_runner", "_draw"),
    ("logits", "_model", "compute_logits"),
    ("run", "_runner", "run"),
    ("update", "_scheduler", "update"),
)


@dataclass(frozen=True, slots=True)
class OverheadBench:
    """`concurrency` sequences of `isl` tokens decode for num_steps steps, on one thread."""

    model: str
    concurrency: int = 32
    isl: int = 256
    num_steps: int = 40
    num_threads: int = 1
    engine: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if self.concurrency < 1 or self.num_steps < 1:
            raise ConfigError("--concurrency and --num-steps must be 1 or more")


def run_overhead_bench(bench: OverheadBench, tell: Callable[[str], None]) -> dict[str, Any]:
    bench.check()
    tell(f"loading {bench.model}")
    settings = {"max_num_seqs": bench.concurrency, "num_threads": bench.num_threads, **bench.engine}
    engine: Any = load_engine(resolve_model(bench.model), EngineConfig.parse(settings), name=bench.model)
    prompts = token_prompts(bench.concurrency, bench.isl, vocab_size=engine.card.vocab_size, seed=0)
    sampling = SamplingParams(temperature=0.0, max_tokens=bench.num_steps + bench.concurrency + 2, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.add(Request(request_id=f"r{index}", model="m", prompt_token_ids=prompt, sampling=sampling, seed=0))
    waiting = {f"r{index}" for index in range(bench.concurrency)}
    while waiting:
        waiting -= {delta.request_id for delta in engine.step() if delta.token_ids}
    tell(f"{bench.concurrency} sequences decode")
    with _timed(engine) as spent:
        began_s = time.thread_time()
        frame_s = sum(_frame_s(engine.step()) for _ in range(bench.num_steps))
        total_s = time.thread_time() - began_s
    return _report(bench, spent, frame_s, total_s)


@contextmanager
def _timed(engine: Any) -> Iterator[dict[str, float]]:
    """CPU seconds by part, while it lasts."""
    spent = {name: 0.0 for name, _, _ in _PARTS}
    owners = {"_scheduler": engine._scheduler, "_runner": engine._runner, "_model": engine._runner._model}
    for name, owner, method in _PARTS:
        setattr(owners[owner], method, _timer(getattr(owners[owner], method), name, spent))
    try:
        yield spent
    finally:
        for _, owner, method in _PARTS:
            delattr(owners[owner], method)  # the class's own shows again


def _timer(call: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began_s = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] += time.thread_time() - began_s

    return timed


def _frame_s(deltas: list[TokenDelta]) -> float:
    """What it costs to write the step's frame."""
    began_s = time.thread_time()
    encode(StepFrame(worker_id="w", incarnation=0, until_s=0.0, busy_s=0.0, idle_s=0.0, deltas=tuple(deltas)))
    return time.thread_time() - began_s


def _report(bench: OverheadBench, spent: dict[str, float], frame_s: float, total_s: float) -> dict[str, Any]:
    model_s = spent["forward"] + spent["logits"]
    parts = {
        "schedule": spent["schedule"],
        "batch": spent["batch"],
        "update": spent["update"],
        "frame": frame_s,
        "sampling": spent["draw"] - spent["logits"],
    }
    parts["deltas and the rest"] = total_s - model_s - sum(parts.values())
    host_s = total_s - model_s - parts["sampling"]
    ms = 1e3 / bench.num_steps
    return {
        "bench": "overhead",
        "settings": asdict(bench),
        "environment": describe_environment(),
        "step_ms": total_s * ms,
        "model_ms": model_s * ms,
        "parts_ms": {name: seconds * ms for name, seconds in parts.items()},
        "host_share": host_s / total_s,
        "host_share_with_sampling": (total_s - model_s) / total_s,
        "host_share_on_two_threads": host_s / (host_s + parts["sampling"] + model_s / 2),
    }
