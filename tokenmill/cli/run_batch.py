"""`tokenmill run-batch`: answer a file of requests in this process, without a server."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.flag_options import with_flags
from tokenmill.cli.output import count_progress, download_progress, note, print_json


def add_to(app: typer.Typer) -> None:
    app.command("run-batch")(with_flags(run_batch))


def run_batch(
    model: str | None = typer.Argument(
        None,
        metavar="[MODEL|RECIPE]",
        help="Alias, path, hf:organisation/name or recipe; default: what the file names.",
    ),
    input_file: Path = typer.Option(..., "--input-file", "-i", help="Requests, one JSON object per line."),
    output_file: Path = typer.Option(..., "--output-file", "-o", help="Answers; those it holds already are kept."),
    *,
    concurrency: int | None = typer.Option(None, min=1, help="Requests in flight; default: twice max_num_seqs."),
    sets: list[str] = typer.Option([], "--set", metavar="PATH=VALUE", help="Change any setting."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object on stdout at the end."),
    flags: dict[str, Any],
) -> None:
    """Answer a file of requests in OpenAI's batch format: chat completions, completions, responses.

    Answers are written as they come. Run the command again after an interruption: what is answered is skipped.
    """
    import asyncio
    import os
    from dataclasses import asdict

    from tokenmill.api.batch.files import BatchOutput, open_input
    from tokenmill.cli.offline import OfflineServer
    from tokenmill.core.errors import BadRequestError
    from tokenmill.recipes.load import load_deployment

    num_lines, named = _look_at(input_file)
    source = model or named
    if source is None:
        raise BadRequestError(f"no request in {input_file} names a model: give one, e.g. tokenmill run-batch smollm2 …")
    config = load_deployment([source], flags=_named(flags, model, source), sets=sets, environ=os.environ)
    with closing(BatchOutput(output_file, input_file)) as output:
        with download_progress() as progress:
            server = OfflineServer(config, progress)
        with open_input(input_file) as lines, count_progress("answering") as show:
            done = itertools.count(1)
            summary = asyncio.run(server.run_batch(lines, output, concurrency, lambda: show(next(done), num_lines)))
    note(_describe(summary))
    if as_json:
        print_json(asdict(summary))


def _look_at(input_file: Path) -> tuple[int, str | None]:
    """How many lines there are, and the model that the first request asks for."""
    from tokenmill.api.batch.files import open_input
    from tokenmill.api.batch.lines import first_model
    from tokenmill.api.config import LimitsConfig

    with open_input(input_file) as lines:
        named = first_model(lines, LimitsConfig().max_body_bytes)
        lines.seek(0)
        return sum(1 for line in lines if line.strip()), named


def _named(flags: dict[str, Any], model: str | None, named: str) -> dict[str, Any]:
    """A model taken from the file is called what the file calls it."""
    return flags if model is not None or flags.get("served_model_name") else flags | {"served_model_name": [named]}


def _describe(summary: Any) -> str:
    parts = [f"{summary.num_answered} answered"]
    if summary.num_skipped:
        parts.append(f"{summary.num_skipped} were there already")
    if summary.num_failed:
        kinds = ", ".join(f"{count} x {code}" for code, count in sorted(summary.errors.items()))
        parts.append(f"{summary.num_failed} failed ({kinds})")
    tokens = summary.num_prompt_tokens + summary.num_output_tokens
    price = f", ${summary.usd / tokens * 1e6:.2f} per million" if tokens else ""
    return f"{'; '.join(parts)}; {tokens} tokens, ${summary.usd:.6f}{price}"
