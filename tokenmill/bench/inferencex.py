"""`bench inferencex`: the published method. Lengths 80 to 100 % of nominal, 10 x concurrency prompts, 2 x warm-ups,
closed loop, no end of sequence, an accuracy gate in front; the agentic scenario counts live session trees.

Source: SemiAnalysisAI/InferenceX, benchmarks/benchmark_lib.sh and docs, 2026. Not responsible for: sweeping (pareto).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenmill.bench.accuracy_gate import GateResult, run_gate
from tokenmill.bench.aio import run_async
from tokenmill.bench.client import open_client
from tokenmill.bench.pareto import OnCell, ParetoBench, Tell, run_pareto_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.bench.systems import System
from tokenmill.bench.target import Target
from tokenmill.core.errors import ConfigError
from tokenmill.workloads.definition import Workload
from tokenmill.workloads.library import load_workload
from tokenmill.workloads.synthetic import share_of_nominal, synthetic_workload

#: nominal (input, output); None: the agentic workload
SCENARIOS: dict[str, tuple[int, int] | None] = {"8k1k": (8192, 1024), "1k1k": (1024, 1024), "agentic": None}
NUM_PER_USER, NUM_WARMUP_PER_USER = 10, 2
AGENTIC_S = 900.0  # the shortest measurement that the published method accepts


@dataclass(frozen=True, slots=True)
class InferenceXBench:
    """
    scale           factor on the nominal lengths, for small machines; it is in the result, and such a run is not
                    comparable with published ones
    floor           of the accuracy gate; 0 leaves it out, which the result says
    duration_s      of the agentic scenario
    """

    scenario: str
    systems: Sequence[System]
    concurrencies: Sequence[int]
    cell: partial[ServeBench]
    scale: float = 1.0
    floor: float = 0.85
    duration_s: float = AGENTIC_S
    ttft_bound_s: float | None = None
    seed: int = 0

    def workload(self) -> Workload:
        if self.scenario not in SCENARIOS:
            raise ConfigError(f"--scenario {self.scenario!r} is unknown: possible: {', '.join(SCENARIOS)}")
        nominal = SCENARIOS[self.scenario]
        if nominal is None:
            return load_workload("agentic").scaled(self.scale)
        isl, osl = (max(1, round(length * self.scale)) for length in nominal)
        return synthetic_workload(share_of_nominal(isl), share_of_nominal(osl))


def run_inferencex_bench(bench: InferenceXBench, tell: Tell, on_cell: OnCell = lambda report: None) -> dict[str, Any]:
    """A pareto result with the gate of each system in it; one that fails its gate makes the result not valid."""
    is_agentic = bench.scenario == "agentic"
    gates: dict[str, dict[str, Any]] = {}

    def gate(system: System, url: str) -> None:
        if bench.floor <= 0:
            tell(f"{system.label}: no accuracy gate, figures are not comparable with published ones")
            return
        result = run_async(_gate(bench, url))
        gates[system.label] = result.to_dict()
        tell(f"{system.label}: {result.num_right} of {result.num_asked} sums right, floor {result.floor:.0%}")

    sweep = ParetoBench(
        systems=bench.systems,
        workload=bench.workload(),
        concurrencies=bench.concurrencies,
        cell=bench.cell,
        num_per_user=NUM_PER_USER,
        num_warmup_per_user=NUM_WARMUP_PER_USER,
        ttft_bound_s=bench.ttft_bound_s,
        duration_s=bench.duration_s if is_agentic else None,
        seed=bench.seed,
        before=gate,
    )
    result = run_pareto_bench(sweep, tell, on_cell)
    failed = [label for label, told in gates.items() if not told["is_passed"]]
    deviations = _deviations(bench)
    result["problems"] += [f"{label} fails the accuracy gate: its speed does not count" for label in failed]
    return result | {
        "bench": "inferencex",
        "scenario": bench.scenario,
        "gates": gates,
        "deviations": deviations,
        "is_comparable": not deviations and not failed,
        "is_valid": result["is_valid"] and not failed,
    }


def _deviations(bench: InferenceXBench) -> list[str]:
    deviations = []
    if bench.scale != 1.0:
        deviations.append(f"lengths are {bench.scale:g} x nominal")
    if bench.floor <= 0:
        deviations.append("no accuracy gate")
    if bench.scenario == "agentic":
        deviations.append("synthetic sessions in place of the published corpus of recorded ones")
        if bench.duration_s < AGENTIC_S:
            deviations.append(f"{bench.duration_s:g} s measured, {AGENTIC_S:g} s is the least")
    return deviations


async def _gate(bench: InferenceXBench, url: str) -> GateResult:
    keywords = bench.cell.keywords
    async with open_client(url, time.perf_counter) as client:
        target = Target(url, "", keywords.get("endpoint", "completions"), keywords.get("api_key"))
        models = keywords.get("models") or (await client.first_model(target),)
        return await run_gate(client, target.named(models[0]), floor=bench.floor)
