"""`bench pareto`: each recipe at each concurrency, as points of the speed-cost plane.

Not responsible for: one load (serve), drawing (workloads.curve_page).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tokenmill.bench.aio import run_async
from tokenmill.bench.environment import describe_environment
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.bench.systems import System
from tokenmill.core.errors import SetupError, TokenmillError
from tokenmill.workloads.curves import CurvePoint, frontier, point_from_report
from tokenmill.workloads.definition import Workload

Tell = Callable[[str], None]
OnCell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ParetoBench:
    """
    cell             settings of every cell; url, load and warm-up are added
    num_per_user     requests per unit of concurrency, at least min_requests in all; warm-ups are num_warmup_per_user
    before           called with each system and its address before its first cell
    ttft_bound_s     points beyond it (median) are on no frontier
    """

    systems: Sequence[System]
    workload: Workload
    concurrencies: Sequence[int]
    cell: partial[ServeBench]
    num_per_user: int = 10
    num_warmup_per_user: int = 2
    min_requests: int = 1
    ttft_bound_s: float | None = None
    duration_s: float | None = None
    seed: int = 0
    before: Callable[[System, str], None] = lambda system, url: None

    def bench(self, url: str, concurrency: int) -> ServeBench:
        num_requests = None if self.duration_s else max(self.min_requests, self.num_per_user * concurrency)
        load = LoadSettings(
            workload=self.workload,
            concurrency=concurrency,
            num_requests=num_requests,
            duration_s=self.duration_s,
            seed=self.seed,
        )
        return self.cell(url=url, load=load, num_warmup=self.num_warmup_per_user * concurrency, num_unloaded=1)


def run_pareto_bench(bench: ParetoBench, tell: Tell, on_cell: OnCell = lambda report: None) -> dict[str, Any]:
    """All cells; a system or cell that fails is told in `failures`, the others stay. Interrupted: what there is."""
    points: list[CurvePoint] = []
    cells: list[dict[str, Any]] = []
    failures: list[dict[str, str]] = []
    for system in bench.systems:
        try:
            with system.running() as url:
                bench.before(system, url)
                _sweep(bench, system, url, points, cells, tell, on_cell)
        except TokenmillError as error:
            failures.append({"system": system.label, "error": error.message})
            tell(f"{system.label}: {error.message}")
        except KeyboardInterrupt:
            failures.append({"system": system.label, "error": "interrupted"})
            break
    if not points:
        reasons = [failure["error"] for failure in failures] or [p for cell in cells for p in cell["problems"]]
        raise SetupError(f"no cell gave a point: {'; '.join(reasons) or 'no answer had more than one chunk'}")
    return {
        "bench": "pareto",
        "settings": _settings(bench),
        "environment": describe_environment(),
        "points": [asdict(point) for point in points],
        "frontiers": _frontiers(points, bench.ttft_bound_s),
        "cells": cells,
        "failures": failures,
        "is_valid": not failures and all(cell["is_valid"] for cell in cells),
        "problems": [failure["error"] for failure in failures] + [p for cell in cells for p in cell["problems"]],
    }


def _sweep(
    bench: ParetoBench,
    system: System,
    url: str,
    points: list[CurvePoint],
    cells: list[dict[str, Any]],
    tell: Tell,
    on_cell: OnCell,
) -> None:
    for concurrency in bench.concurrencies:
        report = run_async(run_serve_bench(bench.bench(url, concurrency), lambda done, total: None))
        on_cell(report)
        cells.append(_cell(system, concurrency, report))
        point = point_from_report(report, system.label, report["environment"]["when"][:10])
        if point is None:
            tell(f"{system.label} at {concurrency}: nothing succeeded, no point")
            continue
        points.append(point)
        tell(
            f"{system.label} at {concurrency}: {point.tput_per_gpu:.0f} tok/s/device, "
            f"{point.interactivity:.1f} tok/s/user, TTFT {(point.ttft_s_p50 or 0) * 1e3:.0f} ms"
        )


def _cell(system: System, concurrency: int, report: dict[str, Any]) -> dict[str, Any]:
    names = ("num_requests", "num_ok", "num_failed", "errors", "num_in_flight_mean", "cached_share", "cacheable_share")
    kept = {name: report[name] for name in (*names, "client_cpu_share", "is_valid", "problems", "slo")}
    run_id = report["settings"]["run_id"]
    return {"system": system.label, "concurrency": concurrency, "run_id": run_id, **kept}


def _frontiers(points: Sequence[CurvePoint], ttft_bound_s: float | None) -> dict[str, list[int]]:
    """Concurrencies on each curve's frontier."""
    curves = dict.fromkeys(point.curve for point in points)
    return {
        curve: [p.concurrency for p in frontier([p for p in points if p.curve == curve], ttft_bound_s)]
        for curve in curves
    }


def _settings(bench: ParetoBench) -> dict[str, Any]:
    return {
        "systems": [asdict(system) for system in bench.systems],
        "workload": bench.workload.name,
        "workload_digest": bench.workload.digest,
        "workload_scale": bench.workload.scale,
        "isl": bench.workload.first_tokens.mean() + bench.workload.prefix_tokens.mean(),
        "osl": bench.workload.output_tokens.mean(),
        "concurrencies": list(bench.concurrencies),
        "num_per_user": bench.num_per_user,
        "num_warmup_per_user": bench.num_warmup_per_user,
        "ttft_bound_s": bench.ttft_bound_s,
        "seed": bench.seed,
        "endpoint": bench.cell.keywords.get("endpoint", "completions"),
    }
