"""Options and endings that bench commands share: one JSON object on the last line, files, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import note, print_json

JSON = typer.Option(False, "--json", help="Print nothing but the JSON object.")
OUTPUT = typer.Option(None, "--output", "-o", help="Write the JSON object to this file, too.")
PRICE = typer.Option(None, "--price-per-hour", min=0, help="Dollars per hour of the measured machine.")
WATTS = typer.Option(None, "--watts", min=0, help="Power draw of the measured machine.")
API_KEY = typer.Option(None, help="Bearer key.", envvar="TOKENMILL_API_KEY")


def one_of(option: str, value: str, possible: tuple[str, ...]) -> Any:
    from tokenmill.core.errors import ConfigError

    if value not in possible:
        raise ConfigError(f"{option} {value!r} is not possible: choose {' or '.join(possible)}")
    return value


def finish(
    result: dict[str, Any], table: Callable[[dict[str, Any]], None], output: Path | None, *, as_json: bool
) -> None:
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if not as_json:
        table(result)
    print_json(result)


def fail_if_invalid(result: dict[str, Any]) -> None:
    """Exit code 1, after everything was written and printed, when the figures must not be used as they are."""
    if not result.get("is_valid", True):
        for problem in result.get("problems", []):
            note(f"tokenmill: {problem}")
        raise typer.Exit(1)


def engine_settings(sets: list[str]) -> dict[str, Any]:
    """`name=value` of EngineConfig, with the units that serve understands."""
    from tokenmill.core.errors import ConfigError
    from tokenmill.recipes.settings import parse_text

    settings: dict[str, Any] = {}
    for text in sets:
        name, separator, value = text.removeprefix("engine.").partition("=")
        if not separator:
            raise ConfigError(f"--set {text!r} is not name=value: write e.g. --set dtype=float32")
        settings[name] = parse_text(f"engine.{name}", value)
    return settings


def fetch(model: str) -> None:
    """With a progress bar where it is not here yet."""
    from tokenmill.cli.output import download_progress
    from tokenmill.models.store import resolve_model

    with download_progress() as progress:
        resolve_model(model, progress)


def numbers(text: str, option: str) -> list[int]:
    """`1,2,4`, or `1..64`: powers of two from the first to the last."""
    from tokenmill.core.errors import ConfigError

    first, dots, last = text.partition("..")
    try:
        values = _powers(int(first), int(last)) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise ConfigError(f"{option} {text!r} is not a list of numbers: write e.g. 1,4,16 or 1..64 (powers of two)")
    return values


def _powers(first: int, last: int) -> list[int]:
    values = []
    while 1 <= first <= last:
        values.append(first)
        first *= 2
    return values if not values or values[-1] == last else [*values, last]
