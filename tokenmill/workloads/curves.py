"""Points of the speed-cost plane and their frontier: throughput per device against tokens per second per user. Pure.

Not responsible for: measuring (bench/pareto), drawing (curve_page).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ConfigError

_MOSTLY_CACHED = 0.5


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One run: a curve's setting at one concurrency. None: not known.

    kind            measured here, simulated, or published by others
    tput_per_gpu    tokens per second and device paid for, input and output
    interactivity   tokens per second and user, first token excluded
    scenario        fixed: every prompt is computed; agentic: most of it comes from the cache, so that its tokens per
                    second are never drawn with the other kind's
    is_valid        False: the run was cut short or contradicts itself; drawn hollow, never on a frontier
    """

    curve: str
    kind: str
    concurrency: int
    tput_per_gpu: float
    interactivity: float
    output_tput_per_gpu: float | None = None
    ttft_s_p50: float | None = None
    ttft_s_p99: float | None = None
    usd_per_mtok_total: float | None = None
    usd_per_mtok_output: float | None = None
    joules_per_token: float | None = None
    isl: float | None = None
    osl: float | None = None
    num_devices: int = 1
    source: str = ""
    scenario: str = "fixed"
    is_valid: bool = True


def point_from_report(
    report: Mapping[str, Any], curve: str, source: str, *, kind: str = "measured"
) -> CurvePoint | None:
    """Of a serve report, its steady part where there is one; None: nothing succeeded, so there is no point."""
    part = report.get("steady") or report
    num_devices, price, watts = report["num_devices"], report["device_hour_usd"], report["watts_per_device"]
    total, output, interactivity = part["total_tput_per_s"], part["output_tput_per_s"], part["interactivity_p50"]
    if not total or not output or not interactivity:
        return None
    per_device, output_per_device = total / num_devices, output / num_devices
    return CurvePoint(
        curve=curve,
        kind=kind,
        concurrency=report["settings"]["concurrency"] or 0,
        tput_per_gpu=per_device,
        interactivity=interactivity,
        output_tput_per_gpu=output_per_device,
        ttft_s_p50=part["ttft_s_p50"],
        ttft_s_p99=part["ttft_s_p99"],
        usd_per_mtok_total=None if price is None else usd_per_mtok(price, per_device),
        usd_per_mtok_output=None if price is None else usd_per_mtok(price, output_per_device),
        joules_per_token=report["joules_per_token"] if watts is None else watts / output_per_device,
        isl=report["isl_mean"],
        osl=report["osl_mean"],
        num_devices=num_devices,
        source=source,
        scenario="agentic" if report["cacheable_share"] > _MOSTLY_CACHED else "fixed",
        is_valid=report["is_valid"],
    )


def usd_per_mtok(device_hour_usd: float, tok_per_s_per_device: float) -> float:
    return device_hour_usd * 1e6 / (3600 * tok_per_s_per_device)


def frontier(points: Iterable[CurvePoint], ttft_bound_s: float | None = None) -> list[CurvePoint]:
    """Those that no other point beats on both axes, by rising interactivity; TTFT (median) within the bound.

    A point whose TTFT is not known passes: published rows rarely say it.
    """
    allowed = [p for p in points if p.is_valid and (ttft_bound_s is None or (p.ttft_s_p50 or 0.0) <= ttft_bound_s)]
    best: list[CurvePoint] = []
    for point in sorted(allowed, key=lambda p: (-p.interactivity, -p.tput_per_gpu)):
        if not best or point.tput_per_gpu > best[-1].tput_per_gpu:
            best.append(point)
    return best[::-1]


def to_csv(points: Sequence[CurvePoint]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(CurvePoint)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(point) for point in points)
    return out.getvalue()


def read_points(path: Path) -> list[CurvePoint]:
    """From the JSON of an earlier sweep, or of one run (bench serve, simulate); ConfigError: it is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        points = [CurvePoint(**p) for p in value["points"]] if "points" in value else [_point_of_run(value)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{str(path)!r} holds no points ({type(error).__name__}: {error}): "
            "give JSON that bench pareto, bench serve or simulate wrote"
        ) from None
    return [point for point in points if point is not None]


def _point_of_run(report: Mapping[str, Any]) -> CurvePoint | None:
    """Runs of the same models on the same device or server are one curve."""
    models, environment = ", ".join(report["settings"]["models"]), report["environment"]
    if environment.get("is_simulated"):
        return point_from_report(report, f"{models} on {environment['device']}", "simulated", kind="simulated")
    return point_from_report(report, f"{models} at {report['settings']['url']}", environment["when"][:10])


def published_points(wanted: str) -> list[CurvePoint]:
    """Rows whose model, hardware or curve holds `wanted` (all: every row); ConfigError lists what there is."""
    text = (resources.files("tokenmill.cost") / "published_points.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    needle = wanted.lower()
    chosen = [r for r in rows if needle == "all" or needle in f"{r['model']} {r['hardware']} {r['curve']}".lower()]
    points = [point for row in chosen if (point := _published(row)) is not None]
    if not points:
        names = sorted({row["model"] for row in rows} | {row["hardware"] for row in rows})
        raise ConfigError(f"no published point matches {wanted!r}: possible: all, {', '.join(names)}")
    return points


def _published(row: Mapping[str, str]) -> CurvePoint | None:
    def number(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    tput, interactivity = number("tok_s_gpu_total"), number("tok_s_user")
    if not tput or not interactivity:
        return None
    price, ttft_ms = number("tco_usd_gpu_hr_used"), number("ttft_ms_median")
    spec = "" if row["spec"] in ("", "none") else f" {row['spec']}"
    name = f"{row['model']} {row['hardware']} {row['precision']} {row['engine']}{spec} ({row['curve']})"
    isl, osl = number("isl"), number("osl")
    output = tput * osl / (isl + osl) if isl and osl else None
    return CurvePoint(
        curve=name,
        kind="published",
        concurrency=int(number("concurrency") or 0),
        tput_per_gpu=tput,
        interactivity=interactivity,
        output_tput_per_gpu=output,
        ttft_s_p50=None if ttft_ms is None else ttft_ms / 1e3,
        usd_per_mtok_total=None if price is None else usd_per_mtok(price, tput),
        usd_per_mtok_output=None if price is None or not output else usd_per_mtok(price, output),
        isl=isl,
        osl=osl,
        num_devices=int(number("gpus") or 1),
        source=f"{row['date']} {row['source']}",
        scenario={"agentx": "agentic"}.get(row["scenario"], row["scenario"]),
    )
