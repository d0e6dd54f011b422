"""Turns the table of serve flags into command-line options. Not responsible for: what they mean (recipes/flags.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

from tokenmill.recipes.flags import FLAGS, Flag


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command(..., flags: dict[str, Any])` as a function with one parameter per flag, for typer to read.

    Values arrive as written (text, bool, list of texts); None: not given.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]

    def wrapper(**values: Any) -> None:
        command(**{p.name: values.pop(p.name) for p in own}, flags=values)

    parameters = own + [_parameter(flag) for flag in FLAGS]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    return wrapper


def _parameter(flag: Flag) -> inspect.Parameter:
    kind: Any = list[str] if flag.key == "served_model_name" else bool if flag.is_bool else str
    names = [f"--{flag.name}/--no-{flag.name}"] if flag.is_bool else [f"--{flag.name}", *flag.aliases]
    metavar = None if flag.is_bool else flag.value
    option = typer.Option(None, *names, help=flag.help, metavar=metavar, rich_help_panel=flag.group)
    return inspect.Parameter(flag.key, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)
