"""`bench throughput`: offline tokens per second of this engine, beside a peer in the same run when asked.

Not responsible for: the peer's own settings (transformers_peer), printing (cli).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.bench.environment import describe_environment
from tokenmill.bench.transformers_peer import Setting, TransformersPeer, common_prefix_share
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import SamplingParams
from tokenmill.cost.rates import DeviceRate
from tokenmill.llm import LLM
from tokenmill.models.store import resolve_model
from tokenmill.workloads.prompts import token_prompts
from tokenmill.workloads.report_cost import cost_report

PEERS = ("transformers",)
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ThroughputBench:
    """
    isl, osl     tokens per prompt and per answer, exact
    concurrency  most sequences in one step of ours; None: all of num_prompts
    repeats      both systems are run so often, in turn; medians are reported
    engine       further EngineConfig fields
    """

    model: str
    num_prompts: int = 32
    isl: int = 256
    osl: int = 64
    concurrency: int | None = None
    num_shared: int = 0
    repeats: int = 2
    seed: int = 0
    against: str | None = None
    price_per_hour: float | None = None
    watts: float | None = None
    engine: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        for name in ("num_prompts", "isl", "osl", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not possible: give 1 or more")
        if self.against is not None and self.against not in PEERS:
            raise ConfigError(f"--against {self.against!r} is unknown: possible: {', '.join(PEERS)}")
        if self.num_shared > self.isl:
            raise ConfigError(f"a shared prefix of {self.num_shared} tokens exceeds isl={self.isl}: lower it")


def run_throughput_bench(bench: ThroughputBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; `tell` gets a line per stage. The result is JSON-able."""
    bench.check()
    tell(f"loading {bench.model}")
    settings = {"max_num_seqs": bench.concurrency or bench.num_prompts, **bench.engine}
    llm = LLM(bench.model, price_per_hour=bench.price_per_hour, watts=bench.watts, **settings)
    card = llm.engine.card
    prompts = token_prompts(
        bench.num_prompts, bench.isl, vocab_size=card.vocab_size, seed=bench.seed, num_shared=bench.num_shared
    )
    ours = _Ours(llm, bench)
    ours.warm_up()
    peer = _Peer(bench, card.dtype, tell) if bench.against else None
    if peer is not None:
        peer.prepare(prompts)
    our_s, peer_s = _run_in_turn(bench, prompts, ours, peer, tell)
    report: dict[str, Any] = {"bench": "throughput", "settings": asdict(bench), "environment": describe_environment()}
    report["engine"] = {"max_num_seqs": card.max_num_seqs, "block_size": card.block_size, "dtype": card.dtype}
    report["rate_source"] = llm.rate.source
    report["tokenmill"] = _figures(bench, our_s, llm.rate)
    if peer is not None and bench.against:
        report[bench.against] = _figures(bench, peer_s, llm.rate) | peer.describe(ours.outputs)
        report["ratio"] = statistics.median(peer_s) / statistics.median(our_s)
    return report


def _run_in_turn(
    bench: ThroughputBench, prompts: Sequence[list[int]], ours: _Ours, peer: _Peer | None, tell: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """Seconds of each run of ours and of the peer; alternating, so that a slow spell of the machine hits both."""
    our_s: list[float] = []
    peer_s: list[float] = []
    for repeat in range(bench.repeats):
        our_s.append(ours.run(prompts))
        tell(_line("tokenmill", repeat, our_s[-1], bench))
        if peer is not None:
            peer_s.append(peer.run(prompts))
            tell(_line(str(bench.against), repeat, peer_s[-1], bench))
    return our_s, peer_s


class _Ours:
    def __init__(self, llm: LLM, bench: ThroughputBench) -> None:
        self._llm = llm
        self._bench = bench
        self.outputs: list[list[int]] = []

    def warm_up(self) -> None:
        """Other tokens than the measured ones, so that the prefix cache learns nothing of them."""
        bench, vocab_size = self._bench, self._llm.engine.card.vocab_size
        num, seed = min(4, bench.num_prompts), bench.seed + 1_000_003
        prompts = token_prompts(num, bench.isl, vocab_size=vocab_size, seed=seed)
        self._generate(prompts, _WARM_UP_TOKENS)

    def run(self, prompts: Sequence[list[int]]) -> float:
        """Seconds; the prefix cache starts empty each time."""
        self._llm.engine.clear_cache()
        began_s = time.perf_counter()
        self.outputs = self._generate(prompts, self._bench.osl)
        return time.perf_counter() - began_s

    def _generate(self, prompts: Sequence[list[int]], osl: int) -> list[list[int]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=osl, ignore_eos=True)
        return [list(output.outputs[0].token_ids) for output in self._llm.generate(list(prompts), sampling)]


class _Peer:
    def __init__(self, bench: ThroughputBench, dtype: str, tell: Callable[[str], None]) -> None:
        import torch

        self._bench = bench
        self._tell = tell
        tell(f"loading {bench.model} in {bench.against}")
        self._peer = TransformersPeer(Path(resolve_model(bench.model)), dtype, torch.get_num_threads())
        self._best: Setting | None = None
        self._tried: list[Setting] = []
        self._outputs: list[list[int]] = []

    def prepare(self, prompts: Sequence[list[int]]) -> None:
        self._best, self._tried = self._peer.find_best(prompts, self._bench.osl, self._on_probe)
        self._tell(f"{self._bench.against} is quickest with batch {self._best.batch_size}, {self._best.kernels}")

    def _on_probe(self, setting: Setting) -> None:
        tokens_per_s = self._bench.num_prompts * self._bench.osl / setting.seconds
        self._tell(f"  probe: batch {setting.batch_size}, {setting.kernels}: about {tokens_per_s:.1f} output tok/s")

    def run(self, prompts: Sequence[list[int]]) -> float:
        assert self._best is not None, "prepare() first"
        began_s = time.perf_counter()
        self._outputs = self._peer.generate(prompts, self._bench.osl, self._best)
        return time.perf_counter() - began_s

    def describe(self, ours: Sequence[Sequence[int]]) -> dict[str, Any]:
        assert self._best is not None
        return {
            "batch_size": self._best.batch_size,
            "attention": self._best.attention,
            "experts": self._best.experts,
            "num_threads": self._peer.num_threads,
            "probes": [setting.to_dict() for setting in self._tried],
            "common_prefix_share": common_prefix_share(ours, self._outputs),
        }


def _figures(bench: ThroughputBench, seconds: list[float], rate: DeviceRate) -> dict[str, Any]:
    """Rates of the median run; the spread is that of the seconds."""
    median_s = statistics.median(seconds)
    num_input, num_output = bench.num_prompts * bench.isl, bench.num_prompts * bench.osl
    cost = cost_report(
        duration_s=median_s,
        num_input_tokens=num_input,
        num_output_tokens=num_output,
        num_good_tokens=None,
        usd_per_hour=rate.usd_per_hour,
        watts=rate.watts,
    )
    return {
        "seconds": seconds,
        "seconds_p50": median_s,
        "output_tput_per_s": num_output / median_s,
        "total_tput_per_s": (num_input + num_output) / median_s,
        **cost,
    }


def _line(name: str, repeat: int, seconds: float, bench: ThroughputBench) -> str:
    rate = bench.num_prompts * bench.osl / seconds
    return f"run {repeat + 1} of {bench.repeats}, {name}: {seconds:.2f} s, {rate:.1f} output tok/s"
