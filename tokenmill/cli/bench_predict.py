"""`tokenmill bench predict`: the step-time model against published measurements and claims. Measures nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, finish
from tokenmill.cli.output import print_table


def add_to(app: typer.Typer) -> None:
    app.command()(predict)


def predict(
    points: Path | None = typer.Option(None, help="CSV of published points; default: those of the package."),
    claims: bool = typer.Option(False, "--claims", help="Recompute published claims instead, with a verdict each."),
    report: Path | None = typer.Option(None, help="Write the tables to this Markdown file, too."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Predict published throughput from the step-time model: each curve anchored by one row, one device left out."""
    if claims:
        from tokenmill.bench.claims import run_claims

        finish(run_claims(), _show_claims, output, as_json=as_json)
        return
    from tokenmill.bench.predict import run_predict_bench

    result = run_predict_bench(points)
    if report is not None:
        from tokenmill.bench.claims import run_claims
        from tokenmill.bench.predict_report import to_markdown

        report.write_text(to_markdown(result, run_claims()), encoding="utf-8")
    finish(result, _show, output, as_json=as_json)


def _show(result: dict[str, Any]) -> None:
    from tokenmill.bench.predict_report import HEADERS, cells, summary

    for title, rows in (
        ("anchored by one row of the curve", result["anchored"]),
        ("a device left out", (result["device_left_out"] or {}).get("rows", [])),
        ("blind: without the curve", result["blind"]),
    ):
        print(title)
        print_table(HEADERS, [cells(row) for row in rows])
    for line in summary(result):
        print(line)


def _show_claims(result: dict[str, Any]) -> None:
    rows = [(c["claim"], c["published"], c["computed"], c["verdict"], c["assumptions"]) for c in result["claims"]]
    print_table(("claim", "published", "computed", "verdict", "assumptions"), rows)
