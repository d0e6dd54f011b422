"""The three files of a sweep: JSON (can be laid over others), CSV, and the page. Not responsible for: the sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.workloads.curve_page import curve_page
from tokenmill.workloads.curves import CurvePoint, published_points, read_points, to_csv


def write_pareto_files(
    result: dict[str, Any], base: Path, *, overlays: Sequence[Path] = (), published: Sequence[str] = ()
) -> dict[str, str]:
    """BASE.json, BASE.csv and BASE.html; earlier results and published points are in the last two."""
    points = gather([CurvePoint(**point) for point in result["points"]], overlays, published)
    files = {kind: base.with_suffix(f".{kind}") for kind in ("json", "csv", "html")}
    base.parent.mkdir(parents=True, exist_ok=True)
    files["json"].write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    files["csv"].write_text(to_csv(points), encoding="utf-8")
    about = {"settings": result["settings"], "environment": result["environment"], "problems": result["problems"]}
    title = f"Tokens per device against tokens per user: {result['settings']['workload']}"
    bound_s = result["settings"]["ttft_bound_s"]
    files["html"].write_text(curve_page(points, title=title, about=about, ttft_bound_s=bound_s), encoding="utf-8")
    return {kind: str(path) for kind, path in files.items()}


def gather(points: list[CurvePoint], overlays: Sequence[Path], published: Sequence[str]) -> list[CurvePoint]:
    """Names of curves in other files get the file's name when they are taken."""
    taken = {point.curve for point in points}
    for path in overlays:
        for point in read_points(path):
            curve = f"{point.curve} ({path.stem})" if point.curve in taken else point.curve
            points.append(replace(point, curve=curve))
    return points + [point for wanted in published for point in published_points(wanted)]
