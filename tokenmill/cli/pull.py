"""`tokenmill pull`: fetch a model now, so that serving it later starts at once."""

from __future__ import annotations

import typer

from tokenmill.cli.output import JSON_OPTION, download_progress, print_json


def add_to(app: typer.Typer) -> None:
    app.command()(pull)


def pull(
    model: str = typer.Argument(help="Alias (see `tokenmill models`) or hf:organisation/name[@revision]."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Fetch a model into the cache folder; a second call does nothing."""
    from tokenmill.models import store

    with download_progress() as progress:
        path = store.pull(model, progress)
    if as_json:
        print_json({"model": model, "path": path})
    else:
        print(path)
