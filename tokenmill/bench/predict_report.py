"""Tables and summary of `bench predict` as text and Markdown. Not responsible for: the figures."""

from __future__ import annotations

from typing import Any

HEADERS = ("row", "device", "tok/s/user", "published", "model", "range", "error", "in range", "model's deployment")

_HOW = """# Predictions against published measurements

Made by `tokenmill bench predict --report docs/reports/predict.md`. Throughput is input and output tokens per second and
device. How to read it: [the step-time model](../twin-step-time.md).

"""


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    user = "-" if row["tok_s_user"] is None else f"{row['tok_s_user']:g}"
    load = f" (c {row['concurrency']:g})" if row["concurrency"] else ""
    return (
        f"{row['curve']} {row['id']}",
        row["hardware"],
        user + load,
        f"{row['published']:g}",
        f"{row['predicted']:.0f}",
        f"{row['low']:.0f} to {row['high']:.0f}",
        f"{row['error']:+.0%}",
        "yes" if row["is_in_range"] else "no",
        row["deployment"] or "out of reach",
    )


def summary(result: dict[str, Any]) -> list[str]:
    lines = []
    for title, median, share in (
        ("anchored by the middle row of the curve", "median_error_anchored", "share_in_range_anchored"),
        ("without the curve", "median_error_blind", "share_in_range_blind"),
    ):
        if result[median] is not None:
            lines.append(f"{title}: median error {result[median]:.1%}, {result[share]:.0%} of rows in range")
    if result["median_error_any_anchor"] is not None:
        lines.append(f"any row as anchor: median error {result['median_error_any_anchor']:.1%}")
    left_out = result["device_left_out"]
    if left_out:
        lines.append(
            f"device left out ({left_out['known']} -> {left_out['left_out']}): median error "
            f"{left_out['median_error']:.1%}, largest {left_out['largest_error']:.0%}, "
            f"{left_out['share_in_range']:.0%} of rows in range"
        )
    for date, found in result["rank_correlation_by_date"].items():
        lines.append(f"rank correlation, {found['num_rows']} rows of {date}: {found['rank_correlation']:.2f}")
    return lines


def to_markdown(result: dict[str, Any], claims: dict[str, Any]) -> str:
    left_out = (result["device_left_out"] or {}).get("rows", [])
    fitted = ", ".join(f"{name} {value:g}" for name, value in result["fitted"].items())
    parts = [_HOW, "\n".join(f"- {line}" for line in summary(result)), f"\n- fitted once, for all rows: {fitted}\n"]
    for title, rows in (
        ("Each curve anchored by one row", result["anchored"]),
        ("A device left out", left_out),
        ("Without the curve", result["blind"]),
    ):
        parts.append(f"\n## {title}\n\n" + _table(HEADERS, [cells(row) for row in rows]))
    curves = [
        (
            name,
            c["hardware"],
            c["model"],
            c["engine"],
            c["precision"],
            c["spec"] or "-",
            c["date"],
            f"{c['slowdown']:.2f}",
        )
        for name, c in result["curves"].items()
    ]
    headers = ("curve", "device", "model", "engine", "precision", "drafts", "date", "slowdown")
    parts.append("\n## Slowdown of the software of each curve\n\n" + _table(headers, curves))
    skipped = list(result["not_predicted"].items())
    parts.append("\n## Rows that are not predicted\n\n" + _table(("row", "why"), skipped))
    told = [(c["claim"], c["published"], c["computed"], c["verdict"], c["assumptions"]) for c in claims["claims"]]
    told_headers = ("claim", "published", "computed", "verdict", "assumptions")
    parts.append("\n## Published claims (`bench predict --claims`)\n\n" + _table(told_headers, told))
    return "".join(parts)


def _table(headers: tuple[str, ...], rows: list[Any]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (headers, ("---",) * len(headers), *rows)]
    return "\n".join(lines) + "\n"
