"""Puts the commands together. Not responsible for: running them (main.py)."""

from __future__ import annotations

import typer

import tokenmill
from tokenmill.cli import (
    bench,
    calibrate,
    catalogue,
    chat,
    cost,
    doctor,
    generate,
    models,
    pull,
    quantize,
    recipe,
    run_batch,
    serve,
    simulate,
    top,
)


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="tokenmill",
        help="LLM inference whose one objective is cost per token.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    serve.add_to(app)
    for module in (chat, generate, run_batch, pull, models, quantize, doctor, calibrate, simulate, top):
        module.add_to(app)
    app.add_typer(bench.build_app(), name="bench")
    app.add_typer(cost.build_app(), name="cost")
    app.add_typer(recipe.build_app(), name="recipe")
    app.add_typer(catalogue.build_app(), name="catalogue")
    return app


def _version(given: bool) -> None:
    if given:
        print(f"tokenmill {tokenmill.__version__}")
        raise typer.Exit()


def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_version
    ),
) -> None:
    pass
