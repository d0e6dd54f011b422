"""`tokenmill models`: names that can be served, and what is on this machine already."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tokenmill.cli.output import JSON_OPTION, human_bytes, print_json, print_table


def add_to(app: typer.Typer) -> None:
    app.command()(models)


def models(as_json: bool = JSON_OPTION) -> None:
    """List the aliases, and what is in the cache."""
    from tokenmill.models.store import list_models

    found = list_models()
    if as_json:
        print_json({"models": [asdict(model) for model in found]})
        return
    rows = [
        (m.spec, m.description, m.licence, human_bytes(m.num_bytes), "on this machine" if m.is_local else "to fetch")
        for m in found
    ]
    print_table(("model", "what", "licence", "size", "where"), rows)
    print("Also possible: hf:organisation/name[@revision], a .gguf file, a folder with config.json and .safetensors.")
