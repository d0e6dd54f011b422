"""`tokenmill doctor`: what this machine is, what would be used on it, and what is missing."""

from __future__ import annotations

import typer

from tokenmill.cli.output import JSON_OPTION, print_json


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(as_json: bool = JSON_OPTION) -> None:
    """Show machine, price, kernels, versions and the cache folder; exit code 1 when something needed is missing."""
    from tokenmill.cli.diagnosis import diagnose, render

    report = diagnose()
    if as_json:
        print_json(report)
    else:
        print(render(report))
    if report["missing"]:
        raise typer.Exit(1)
