"""`bench predict`: published points against the step-time model, anchored curve by curve, one device left out, ranked.

Runs no model and needs no GPU. Not responsible for: the model (cost/steptime), claims in articles (claims), printing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.cost.steptime import anchor as anchors
from tokenmill.cost.steptime.anchor import RowPrediction
from tokenmill.cost.steptime.efficiency import FITTED, default_efficiency
from tokenmill.cost.steptime.points import Point, read_points
from tokenmill.cost.steptime.row_model import RowModel, split_rows
from tokenmill.infra.catalogue import load_catalogue

_FEWEST_RANKED = 5


def run_predict_bench(points_file: Path | None = None, known: str = "c03", left_out: str = "c04") -> dict[str, Any]:
    """JSON-able. `known` and `left_out`: curves of the same software on two devices, where the file has both."""
    points = read_points(points_file)
    catalogue = load_catalogue()
    rows, refused = split_rows(points, catalogue)
    if not rows:
        raise ConfigError(f"{points_file or 'the published points'} hold no row that can be predicted")
    curves = anchors.by_curve(rows)
    anchored = {curve: anchors.anchor_of(of) for curve, of in curves.items()}
    slowdowns = {curve: (row, anchors.solve_slowdown(row)) for curve, row in anchored.items()}
    predictions = [
        prediction
        for curve, of in curves.items()
        if len(of) > 1
        for prediction in anchors.predict_anchored(of, anchored[curve])
    ]
    blind = [_blind(row, slowdowns) for row in anchored.values()]
    return {
        "bench": "predict",
        "num_points": len(points),
        "not_predicted": refused,
        "fitted": {name: getattr(default_efficiency(catalogue.get("gb300_nvl72")), name) for name in FITTED},
        "curves": {curve: _curve(curves[curve], slow) for curve, (_, slow) in slowdowns.items()},
        "anchored": [_row(p) for p in predictions],
        "blind": [_row(p) for p in blind],
        "median_error_anchored": _median_error(predictions),
        "share_in_range_anchored": _share_in_range(predictions),
        "median_error_any_anchor": _any_anchor_error(curves),
        "median_error_blind": _median_error(blind),
        "share_in_range_blind": _share_in_range(blind),
        "device_left_out": _left_out(curves, known, left_out),
        "rank_correlation_by_date": _ranks([*predictions, *_anchors_themselves(curves, anchored, blind)]),
    }


def _blind(row: RowModel, slowdowns: dict[str, tuple[RowModel, float]]) -> RowPrediction:
    slowdown, seen = anchors.typical_slowdown(row, slowdowns)
    return anchors.predict_row(row, slowdown, anchors.OTHER_SOFTWARE, seen)


def _anchors_themselves(
    curves: dict[str, list[RowModel]], anchored: dict[str, RowModel], blind: Sequence[RowPrediction]
) -> list[RowPrediction]:
    """From another row of their curve where there is one; the only rows of curves stay blind."""
    by_id = {prediction.row.point.id: prediction for prediction in blind}
    return [
        anchors.predict_anchor(curves[curve], row) if len(curves[curve]) > 1 else by_id[row.point.id]
        for curve, row in anchored.items()
    ]


def _any_anchor_error(curves: dict[str, list[RowModel]]) -> float | None:
    """Every row of a curve from every other one: how little the choice of the anchor matters."""
    errors = []
    for of in curves.values():
        solved = {row.point.id: anchors.solve_slowdown(row) for row in of} if len(of) > 1 else {}
        for by, row in permutations(of, 2):
            assert row.point.tput_per_gpu is not None
            errors.append(abs((row.tput(solved[by.point.id]) or 0.0) / row.point.tput_per_gpu - 1.0))
    return statistics.median(errors) if errors else None


def _left_out(curves: dict[str, list[RowModel]], known: str, left_out: str) -> dict[str, Any] | None:
    if known not in curves or left_out not in curves:
        return None
    found = anchors.predict_other_device(curves[known], curves[left_out])
    return {
        "known": known,
        "left_out": left_out,
        "rows": [_row(p) for p in found],
        "median_error": _median_error(found),
        "largest_error": max(abs(p.error) for p in found),
        "share_in_range": _share_in_range(found),
    }


def _ranks(predictions: Sequence[RowPrediction]) -> dict[str, dict[str, float]]:
    """Each row once, predicted without itself; dates, as the file writes them, with five rows or more."""
    by_date: dict[str, list[RowPrediction]] = {}
    for prediction in predictions:
        by_date.setdefault(prediction.row.point.date, []).append(prediction)
    return {
        date: {
            "num_rows": len(of),
            "rank_correlation": anchors.rank_correlation([p.truth for p in of], [p.tput for p in of]),
        }
        for date, of in sorted(by_date.items())
        if len(of) >= _FEWEST_RANKED
    }


def _median_error(predictions: Sequence[RowPrediction]) -> float | None:
    return statistics.median(abs(p.error) for p in predictions) if predictions else None


def _share_in_range(predictions: Sequence[RowPrediction]) -> float | None:
    return sum(p.is_in_range for p in predictions) / len(predictions) if predictions else None


def _curve(of: Sequence[RowModel], slowdown: float) -> dict[str, Any]:
    point: Point = of[0].point
    fields = ("model", "hardware", "engine", "precision", "spec", "date")
    return {name: getattr(point, name) for name in fields} | {"num_rows": len(of), "slowdown": slowdown}


def _row(prediction: RowPrediction) -> dict[str, Any]:
    point, choice = prediction.row.point, prediction.row.choice(prediction.slowdown)
    return {
        "id": point.id,
        "curve": point.curve,
        "hardware": point.hardware,
        "tok_s_user": point.tok_s_user,
        "concurrency": point.concurrency,
        "published": prediction.truth,
        "predicted": prediction.tput,
        "low": prediction.low,
        "high": prediction.high,
        "error": prediction.error,
        "is_in_range": prediction.is_in_range,
        "seen": prediction.seen,
        "deployment": None if choice is None else str(choice),
    }
