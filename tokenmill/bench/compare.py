"""`bench compare`: the same load on several servers in turns, and the ratios between them.

Not responsible for: one load (serve), ratios (workloads.comparison).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tokenmill.bench.aio import run_async
from tokenmill.bench.environment import describe_environment
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.bench.systems import System
from tokenmill.core.errors import ConfigError, SetupError, TokenmillError
from tokenmill.workloads.comparison import compare

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CompareBench:
    """
    systems  the first is what the others are compared with; all run all the time, one is loaded at a time
    cell     settings of every run; url and load are added
    rounds   each round loads every system once, every other round in reverse order; tokens are new every time
    """

    systems: Sequence[System]
    load: LoadSettings
    cell: partial[ServeBench]
    rounds: int = 3

    def check(self) -> None:
        if len(self.systems) < 2:
            raise ConfigError("a comparison needs two systems: give --url twice, or --recipes a,b")
        if self.rounds < 2:
            raise ConfigError(f"--rounds {self.rounds} has no spread: give 2 or more")
        self.load.check()


def run_compare_bench(bench: CompareBench, tell: Tell) -> dict[str, Any]:
    """Rounds that were finished count when a server dies or the user interrupts; the result says so."""
    bench.check()
    rounds: list[dict[str, dict[str, Any]]] = []
    problems: list[str] = []
    with ExitStack() as stack:
        urls = {system.label: stack.enter_context(system.running()) for system in bench.systems}
        try:
            for index in range(bench.rounds):
                rounds.append(_round(bench, urls, index, tell))
        except TokenmillError as error:
            problems.append(f"stopped after {len(rounds)} of {bench.rounds} rounds: {error.message}")
        except KeyboardInterrupt:
            problems.append(f"interrupted after {len(rounds)} of {bench.rounds} rounds")
    if not rounds:
        raise SetupError(f"no round was finished: {problems[0]}")
    labels = [system.label for system in bench.systems]
    problems += [
        f"{label}, round {index + 1}: {problem}"
        for index, reports in enumerate(rounds)
        for label, report in reports.items()
        for problem in report["problems"]
    ]
    return {
        "bench": "compare",
        "settings": {"systems": [asdict(s) for s in bench.systems], "rounds": bench.rounds, **bench.load.told()},
        "environment": describe_environment(),
        "base": labels[0],
        "metrics": compare(rounds, labels[0]),
        "rounds": [{label: _kept(report) for label, report in reports.items()} for reports in rounds],
        "problems": problems,
        "is_valid": len(rounds) == bench.rounds and all(r["is_valid"] for reports in rounds for r in reports.values()),
    }


def _round(bench: CompareBench, urls: dict[str, str], index: int, tell: Tell) -> dict[str, dict[str, Any]]:
    order = list(urls) if index % 2 == 0 else list(urls)[::-1]
    reports = {}
    for label in order:
        run = bench.cell(url=urls[label], load=bench.load)
        report = run_async(run_serve_bench(run, lambda done, total: None))
        reports[label] = report
        output, ttft_s = report["output_tput_per_s"] or 0.0, report["ttft_s_p50"] or 0.0
        tell(f"round {index + 1}, {label}: {output:.1f} output tok/s, TTFT {ttft_s * 1e3:.0f} ms")
    return {label: reports[label] for label in urls}


def _kept(report: dict[str, Any]) -> dict[str, Any]:
    """Flat figures; each run's own environment and steady part would only repeat."""
    return {name: value for name, value in report.items() if name not in ("environment", "settings", "steady")}
