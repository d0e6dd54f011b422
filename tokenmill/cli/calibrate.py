"""`tokenmill calibrate`: fit the step-time model to this machine; a TOML file for `simulate` and `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, note, print_json, print_table


def add_to(app: typer.Typer) -> None:
    app.command()(calibrate)


def calibrate(
    model: str = typer.Argument("smollm2", help="Alias, path or hf:organisation/name."),
    output: Path = typer.Option(Path("calibration.toml"), "--output", "-o", help="File to write."),
    name: str | None = typer.Option(None, help="What the file calls the model; default: as given."),
    repeats: int = typer.Option(2, help="Passes over the loads."),
    num_steps: int = typer.Option(8, help="Decode steps of each load."),
    served: bool = typer.Option(False, "--served", help="Measure a server, too: what HTTP and clients cost here."),
    sets: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Engine setting, e.g. num_threads=1."),
    seed: int = typer.Option(0, help="Of the prompts."),
    curve: str | None = typer.Option(None, help="Fit to this curve of published points instead, e.g. c03."),
    points: Path | None = typer.Option(None, help="CSV with the published points; default: those of the package."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure steps of the real engine here and fit a step-time model (about a minute on an idle machine).

    With --curve nothing is measured: the slowdown of the software behind a published curve is fitted.
    """
    if curve is not None:
        _from_points(curve, points, output, as_json=as_json)
        return
    from tokenmill.bench.calibrate import CalibrateBench, run_calibration
    from tokenmill.cli.bench_options import engine_settings
    from tokenmill.cli.output import download_progress
    from tokenmill.cost.steptime.calibration import write_calibration
    from tokenmill.models import store

    bench = CalibrateBench(model, name, num_steps, repeats, seed, served, engine_settings(sets))
    bench.check()
    with download_progress() as progress:
        store.resolve_model(model, progress)
    calibration, report = run_calibration(bench, note)
    write_calibration(calibration, output)
    if not as_json:
        _show(report)
        print(f"written to {output}")
    print_json(report | {"output": str(output)})


def _from_points(curve: str, points: Path | None, output: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    from tokenmill.cost.steptime.anchor import calibrate_curve
    from tokenmill.cost.steptime.calibration import write_calibration
    from tokenmill.cost.steptime.points import read_points
    from tokenmill.infra.catalogue import load_catalogue

    made = calibrate_curve(read_points(points), curve, load_catalogue())
    write_calibration(made, output)
    if not as_json:
        print(f"{made.model} on {made.hardware}, {made.origin['engine']}, {made.origin['date']}: everything takes")
        print(f"{made.slowdown:.2f} times as long as by the defaults ({made.origin['rows']}); written to {output}")
    print_json(asdict(made) | {"output": str(output)})


def _show(report: dict[str, Any]) -> None:
    environment = report["environment"]
    print(f"{report['num_steps']} steps, load average {environment['load_average_1m']:.1f}, {environment['cpu']}")
    for kind, unit in (("decode_s", "sequences"), ("prefill_s", "tokens")):
        cells = ", ".join(f"{n}: {seconds * 1e3:.1f}" for n, seconds in report[kind].items())
        print(f"{kind.removesuffix('_s')} step, ms by {unit}: {cells}")
    rows = [
        (
            f"{check['num_seqs']} x {check['num_prompt_tokens']}",
            *(f"{check[f'{kind}_s_p50'] * 1e3:.1f} / {check[f'{kind}_predicted_s_p50'] * 1e3:.1f}" for kind in _KINDS),
            *(f"{check[f'{kind}_error']:+.0%}" for kind in _KINDS),
        )
        for check in report["checks"]
    ]
    print_table(
        ("left out of the fit", "prefill ms, measured / model", "decode ms, measured / model", "error", "error"), rows
    )
    if report["served"]:
        print(f"served: {report['served']['factor']:.2f} x engine + {report['served']['step_s'] * 1e3:.2f} ms per step")


_KINDS = ("prefill", "decode")
