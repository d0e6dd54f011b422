"""`bench speculation`: tokens per second per user and dollars per million tokens, by method and concurrency.

All methods run in turn in one process, on the same prompts, each with an engine of its own over the same weights.
Not responsible for: prompts (draft_prompts), printing (cli).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenmill.bench.draft_prompts import draft_prompts
from tokenmill.bench.environment import describe_environment
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import SamplingParams
from tokenmill.core.wire import WorkerStats
from tokenmill.llm import LLM

_FIGURES = ("drafts_total", "draft_tokens_total", "accepted_tokens_total")


@dataclass(frozen=True, slots=True)
class SpeculationBench:
    """
    methods      "off", or a method of speculative decoding with defaults
    configs      method -> its whole speculative_config, where defaults are not enough (a drafter's path)
    prompts      code-edit or domains; isl: tokens of the file in a code-edit prompt
    concurrency  users at once; each asks `rounds` times
    """

    model: str
    methods: tuple[str, ...] = ("off", "ngram", "mtp", "dflash", "auto")
    configs: dict[str, Any] = field(default_factory=dict)
    concurrency: tuple[int, ...] = (1, 4, 16)
    prompts: str = "domains"
    isl: int = 300
    osl: int = 128
    temperature: float = 0.0
    repeats: int = 7
    price_per_hour: float | None = None
    watts: float | None = None
    engine: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        for name in ("isl", "osl", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not possible: give 1 or more")
        if "off" not in self.methods:
            raise ConfigError("methods must hold off: the others are compared with it")
        if not self.concurrency or min(self.concurrency) < 1:
            raise ConfigError(f"concurrency={self.concurrency} is not possible: give 1 or more users")


@dataclass(slots=True)
class _Arm:
    """One method: its engine, seconds of each run and what became of drafts, by concurrency."""

    name: str
    llm: LLM
    seconds: dict[int, list[float]] = field(default_factory=dict)
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    outputs: dict[int, list[list[int]]] = field(default_factory=dict)

    def run(self, users: int, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]) -> None:
        """The prefix cache starts empty each time."""
        self.llm.engine.clear_cache()
        before, began_s = self.llm.engine.stats(), time.perf_counter()
        outputs = self.llm.generate(list(prompts), list(sampling))
        self.seconds.setdefault(users, []).append(time.perf_counter() - began_s)
        self._count(users, before, self.llm.engine.stats())
        self.outputs[users] = [output.outputs[0].token_ids for output in outputs]

    def _count(self, users: int, before: WorkerStats, after: WorkerStats) -> None:
        counts = self.counts.setdefault(users, dict.fromkeys(_FIGURES, 0))
        for name in _FIGURES:
            counts[name] += getattr(after, name) - getattr(before, name)


def run_speculation_bench(bench: SpeculationBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; `tell` gets a line per stage. The result is JSON-able."""
    bench.check()
    arms, refused = _load(bench, tell)
    for users in bench.concurrency:
        prompts, sampling = _requests(bench, arms[0].llm, users)
        for arm in arms:
            arm.run(users, prompts, sampling)  # warm: kernels, prices, acceptance
            arm.seconds[users], arm.counts[users] = [], dict.fromkeys(_FIGURES, 0)
        for repeat in range(bench.repeats):
            for arm in arms:
                arm.run(users, prompts, sampling)
                tell(f"{users} users, run {repeat + 1}, {arm.name}: {arm.seconds[users][-1]:.2f} s")
    return {
        "bench": "speculation",
        "settings": asdict(bench),
        "environment": describe_environment(),
        "rate_source": arms[0].llm.rate.source,
        "refused": refused,
        "results": [_figures(bench, arm, arms[0], users) for users in bench.concurrency for arm in arms],
        **_targets(bench, arms),
    }


def _load(bench: SpeculationBench, tell: Callable[[str], None]) -> tuple[list[_Arm], dict[str, str]]:
    """Methods that this model has no drafter for are left out, with what was said."""
    arms: list[_Arm] = []
    refused: dict[str, str] = {}
    for name in bench.methods:
        tell(f"loading {bench.model} for {name}")
        config = None if name == "off" else bench.configs.get(name, {"method": name})
        settings = {"max_num_seqs": max(bench.concurrency), **bench.engine, "speculative_config": config}
        try:
            llm = LLM(bench.model, price_per_hour=bench.price_per_hour, watts=bench.watts, **settings)
        except ConfigError as error:
            if name == "off" or name in bench.configs:
                raise
            refused[name] = error.message
            tell(f"{name} is left out: {error.message}")
            continue
        arms.append(_Arm(name, llm))
    return arms, refused


def _requests(bench: SpeculationBench, llm: LLM, users: int) -> tuple[list[list[int]], list[SamplingParams]]:
    if llm.tokenizer is None:
        raise ConfigError(f"{bench.model} has no tokenizer: acceptance needs real text")
    prompts = draft_prompts(bench.prompts, llm.tokenizer, users, bench.isl)
    sampling = [
        SamplingParams(temperature=bench.temperature, max_tokens=bench.osl, ignore_eos=True, seed=i)
        for i in range(users)
    ]
    return prompts, sampling


def _figures(bench: SpeculationBench, arm: _Arm, off: _Arm, users: int) -> dict[str, Any]:
    seconds = arm.seconds[users]
    median_s = statistics.median(seconds)
    num_tokens, counts = users * bench.osl, arm.counts[users]
    usd_per_s = arm.llm.rate.usd_per_hour / 3600
    return {
        "method": arm.name,
        "concurrency": users,
        "tok_s_per_user": bench.osl / median_s,
        "usd_per_mtok_output": median_s * usd_per_s / num_tokens * 1e6,
        "speedup": statistics.median(off.seconds[users]) / median_s,
        "seconds": [round(s, 4) for s in seconds],
        "acceptance_length": _length(counts),
        "drafted_per_token": counts["draft_tokens_total"] / (num_tokens * len(seconds)),
        "rejected_share": _share(counts),
        "is_same_text": arm.outputs[users] == off.outputs[users],
    }


def _length(counts: dict[str, int]) -> float | None:
    return 1 + counts["accepted_tokens_total"] / counts["drafts_total"] if counts["drafts_total"] else None


def _share(counts: dict[str, int]) -> float | None:
    drafted = counts["draft_tokens_total"]
    return 1 - counts["accepted_tokens_total"] / drafted if drafted else None


def _targets(bench: SpeculationBench, arms: Sequence[_Arm]) -> dict[str, Any]:
    """auto beside the best fixed method and beside off, at its worst concurrency."""
    auto = next((arm for arm in arms if arm.name == "auto"), None)
    if auto is None:
        return {}

    def median(arm: _Arm, users: int) -> float:
        return statistics.median(arm.seconds[users])

    others = [arm for arm in arms if arm is not auto]
    return {
        "auto_over_best": min(min(median(a, n) for a in others) / median(auto, n) for n in bench.concurrency),
        "auto_over_off": min(median(others[0], n) / median(auto, n) for n in bench.concurrency),
        "best_speedup": {n: max(median(others[0], n) / median(arm, n) for arm in arms) for n in bench.concurrency},
    }
