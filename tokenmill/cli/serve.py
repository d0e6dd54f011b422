"""`tokenmill serve`: one or several models over HTTP, under a local supervisor."""

from __future__ import annotations

from typing import Any

import typer

from tokenmill.cli.flag_options import with_flags
from tokenmill.cli.output import download_progress, note


def add_to(app: typer.Typer) -> None:
    app.command()(with_flags(serve))


def serve(
    sources: list[str] = typer.Argument(
        metavar="MODEL|RECIPE...",
        help="Alias, path, hf:organisation/name, shipped recipe or .yaml file; several are served together.",
    ),
    *,
    sets: list[str] = typer.Option([], "--set", metavar="PATH=VALUE", help="Change any setting, e.g. api.port=80."),
    print_config: bool = typer.Option(False, "--print-config", help="Show all settings for this machine and exit."),
    as_json: bool = typer.Option(False, "--json", help="With --print-config: one JSON object."),
    flags: dict[str, Any],
) -> None:
    """Serve models over HTTP (OpenAI API).

    Every flag --some-name is also a variable TOKENMILL_SOME_NAME. --set wins over flags, flags over variables, these
    over a recipe, and a recipe over defaults.
    """
    import os

    from tokenmill.recipes.load import load_deployment

    config = load_deployment(sources, flags=flags, sets=sets, environ=os.environ)
    if print_config:
        from tokenmill.cli import recipe

        recipe.print_config(config, resolved=True, as_json=as_json)
    else:
        raise typer.Exit(_run(config))


def _run(config: Any) -> int:
    """Fetch, resolve, start, and stay until it ends; the exit code."""
    import asyncio
    import logging
    import sys

    from tokenmill.cli.launch import build_processes, fetch_models
    from tokenmill.operations.serve import serve as supervise
    from tokenmill.recipes.resolve import resolve

    form = "%(asctime)s supervisor %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=config.api.log_level.upper(), format=form)
    with download_progress() as progress:
        paths = fetch_models(config, progress)
    resolved, _ = resolve(config)
    processes = build_processes(config, resolved, paths)
    names = ", ".join(model.name for model in resolved.models)
    note(f"tokenmill starts {len(processes.workers)} worker(s) for {names}")
    return asyncio.run(supervise(processes.frontend, processes.workers, resolved.operations))
