"""Slowdown of the software behind a published curve, from its rows; and how well the other rows are then predicted.

One number per curve stands for engine, date and recipe: everything takes so many times as long as with the software
that the efficiencies were fitted to. A curve without rows to spare gets the typical slowdown of curves like it.
Not responsible for: the model's answer to a row (row_model), printing (bench).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError
from tokenmill.cost.steptime.calibration import SoftwareCalibration
from tokenmill.cost.steptime.points import Point
from tokenmill.cost.steptime.row_model import RowModel, row_models
from tokenmill.infra.catalogue import Catalogue

#: A slowdown is off by less than this four times of five: anchored on a row of the same curve, on a curve of another
#: device with the same software, on nothing but similar curves. Set from the residuals of the published points.
SAME_CURVE, OTHER_DEVICE, OTHER_SOFTWARE = 1.25, 1.3, 1.9
_LOWEST, _HIGHEST = 0.05, 64.0
_STEPS = 16


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """Tokens per second and device. `seen`: what it rests on; low, high: where the truth is, four times of five."""

    row: RowModel
    slowdown: float
    tput: float
    low: float
    high: float
    seen: str

    @property
    def error(self) -> float:
        """Relative; -1 where the model does not reach the interactivity at all."""
        return self.tput / self.truth - 1.0

    @property
    def truth(self) -> float:
        assert self.row.point.tput_per_gpu is not None
        return self.row.point.tput_per_gpu

    @property
    def is_in_range(self) -> bool:
        return self.low <= self.truth <= self.high


def solve_slowdown(row: RowModel) -> float:
    """At which the model gives the row's published throughput (nearest possible one; throughput falls with it)."""
    assert row.point.tput_per_gpu is not None
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if (row.tput(math.exp(middle)) or 0.0) >= row.point.tput_per_gpu:
            low = middle
        else:
            high = middle
    return math.exp(low)


def predict_row(row: RowModel, slowdown: float, range_factor: float, seen: str) -> RowPrediction:
    """The range is that of the slowdown, read through the model: on a steep part of a frontier it is wide."""
    values = [row.tput(slowdown * factor) or 0.0 for factor in (range_factor, 1.0, 1.0 / range_factor)]
    return RowPrediction(row, slowdown, values[1], values[0], values[2], seen)


def calibrate_curve(points: Sequence[Point], curve: str, catalogue: Catalogue) -> SoftwareCalibration:
    """The slowdown that all rows of a curve agree on best (geometric mean); ConfigError when there is no such curve."""
    rows = [row for row in row_models(points, catalogue) if row.point.curve == curve]
    if not rows:
        known = sorted(by_curve(row_models(points, catalogue)))
        raise ConfigError(f"no row of curve {curve!r} can be predicted: possible: {', '.join(known)}")
    solved = [solve_slowdown(row) for row in rows]
    point = rows[0].point
    origin = {"curve": curve, "engine": point.engine, "date": point.date, "source": point.source}
    origin |= {"rows": ", ".join(f"{row.point.id}: {slow:.3f}" for row, slow in zip(rows, solved, strict=True))}
    slowdown = statistics.geometric_mean(solved)
    return SoftwareCalibration(point.model, point.hardware, point.precision, slowdown, SAME_CURVE, origin)


def by_curve(rows: Sequence[RowModel]) -> dict[str, list[RowModel]]:
    curves: dict[str, list[RowModel]] = {}
    for row in rows:
        curves.setdefault(row.point.curve, []).append(row)
    return curves


def anchor_of(rows: Sequence[RowModel]) -> RowModel:
    """The row in the middle: by interactivity where all have it, else by throughput."""
    has_user = all(row.point.tok_s_user is not None for row in rows)
    ordered = sorted(rows, key=lambda row: (row.point.tok_s_user if has_user else row.point.tput_per_gpu) or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def predict_anchored(rows: Sequence[RowModel], anchor: RowModel) -> list[RowPrediction]:
    """The other rows of the anchor's curve."""
    slowdown = solve_slowdown(anchor)
    seen = f"row {anchor.point.id} of the curve"
    return [predict_row(row, slowdown, SAME_CURVE, seen) for row in rows if row is not anchor]


def predict_anchor(rows: Sequence[RowModel], anchor: RowModel) -> RowPrediction:
    """The anchor itself, from the row of its curve that is nearest to it in throughput."""
    assert anchor.point.tput_per_gpu is not None
    own = math.log(anchor.point.tput_per_gpu)
    others = [row for row in rows if row is not anchor]
    nearest = min(others, key=lambda row: abs(math.log(row.point.tput_per_gpu or 1.0) - own))
    return predict_anchored([anchor, nearest], nearest)[0]


def predict_other_device(known: Sequence[RowModel], unknown: Sequence[RowModel]) -> list[RowPrediction]:
    """Rows of a device that nothing was fitted to, with the slowdown of the same software on another device."""
    slowdown = statistics.geometric_mean([solve_slowdown(row) for row in known])
    seen = f"curve {known[0].point.curve} ({known[0].point.hardware})"
    return [predict_row(row, slowdown, OTHER_DEVICE, seen) for row in unknown]


def typical_slowdown(row: RowModel, anchored: Mapping[str, tuple[RowModel, float]]) -> tuple[float, str]:
    """For a row without help of its own curve: the median of the most similar other curves.

    anchored  curve -> (its anchor, its slowdown)
    """
    others = [(other, slow) for curve, (other, slow) in anchored.items() if curve != row.point.curve]
    for what, fields in (
        ("model, device and drafts", ("model", "hardware", "spec")),
        ("model and vendor", ("model", "vendor")),
        ("model", ("model",)),
    ):
        alike = [slow for other, slow in others if all(_trait(other, f) == _trait(row, f) for f in fields)]
        if alike:
            return statistics.median(alike), f"{len(alike)} curves with the same {what}"
    slowdowns = [slow for _, slow in others]
    return (statistics.median(slowdowns), f"{len(slowdowns)} other curves") if slowdowns else (1.0, "no curve")


def _trait(row: RowModel, field: str) -> str:
    if field == "vendor":
        return "amd" if row.point.hardware.startswith("mi") else "nvidia"
    return str(getattr(row.point, field))


def rank_correlation(truth: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's, ties averaged."""
    return statistics.correlation(_ranks(truth), _ranks(predicted))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(2 * ordered.index(v) + ordered.count(v) - 1) / 2 for v in values]
