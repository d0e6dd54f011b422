"""Points as one HTML file: nothing is fetched when it is opened. Not responsible for: the points (curves)."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tokenmill.core.paths import read_asset
from tokenmill.workloads.curves import CurvePoint


def curve_page(
    points: Sequence[CurvePoint], *, title: str, about: Mapping[str, Any], ttft_bound_s: float | None
) -> str:
    """`about` is shown below the chart: commit, machine, workload and its hash."""
    data = {"points": [asdict(point) for point in points], "about": dict(about), "ttftBoundS": ttft_bound_s}
    return page("pareto", title, data)


def page(name: str, title: str, data: Mapping[str, Any]) -> str:
    """`name`.html of the assets in its frame, with the plot library, its own script and `data` written into it."""
    parts = {
        "BODY": read_asset(f"{name}.html"),
        "TITLE": html.escape(title),
        "PLOT_CSS": read_asset("uplot/uPlot.min.css"),
        "PAGE_CSS": read_asset("report.css"),
        "PLOT_LICENSE": html.escape(read_asset("uplot/LICENSE")).replace("--", "- -"),
        "PLOT_JS": read_asset("uplot/uPlot.iife.min.js"),
        "PAGE_JS": read_asset(f"{name}.js"),
        "DATA": json.dumps(data).replace("</", "<\\/"),
    }
    text = read_asset("frame.html")
    for key, value in parts.items():
        marker = f"%%{key}%%"
        assert text.count(marker) >= 1, f"frame.html has no {marker}"
        text = text.replace(marker, value)
    return text
