"""How commands print: one JSON object with --json, else a table or lines for people; progress goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

#: The option every command has.
JSON_OPTION = typer.Option(False, "--json", help="Print one JSON object on stdout instead.")


def print_json(value: Any) -> None:
    """One line, so that the last line of any output is a whole object."""
    print(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value.to_dict()


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no edge to wrap at
    console.print(table)


def note(text: str) -> None:
    """A line for people on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress callback for the model store: a bar on a terminal, a line per stage elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def update(what: str, done_bytes: int, total_bytes: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total_bytes)
                if not console.is_terminal:
                    note(f"{what} ({total_bytes / 1e6:.0f} MB)")
            bars.update(tasks[what], completed=done_bytes, total=total_bytes)

        yield update


@contextmanager
def count_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress callback (done, total) for things that are counted; silent unless stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def human_bytes(num_bytes: float) -> str:
    from tokenmill.core.units import format_bytes

    return format_bytes(num_bytes)
