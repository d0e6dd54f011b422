"""`tokenmill quantize`: a model's weights in few bits, as a folder that others read as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, count_progress, human_bytes, note, print_json, print_table

_WORST = 5


def add_to(app: typer.Typer) -> None:
    app.command()(quantize)


def quantize(
    source: str = typer.Argument(help="Alias, path or hf:organisation/name of an unquantised model."),
    dest: Path = typer.Argument(help="Folder to write; the same command goes on where it was stopped."),
    format_: str = typer.Option(..., "--format", help="nvfp4, mxfp4, fp8_block, fp8, int8 or int4."),
    recipe: str = typer.Option("max", help="How scales are found: max, mse or four_over_six."),
    layout: str = typer.Option("auto", help="modelopt or compressed-tensors; auto: modelopt for nvfp4."),
    experts_only: bool = typer.Option(False, "--experts-only", help="Routed experts only; the rest stays as it is."),
    exclude: list[str] = typer.Option([], help="Pattern of tensors to leave as they are; may be given again."),
    calib: Path | None = typer.Option(None, help="Text to calibrate with; no recipe here needs one yet."),
    shard_gb: float = typer.Option(4.0, min=0.001, help="About the size of one output file, in GB."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Quantise SOURCE into folder DEST, a part of a tensor at a time."""
    from tokenmill.core.errors import ConfigError
    from tokenmill.kernels.quantized.packed import SCHEMES
    from tokenmill.kernels.quantized.rounding import RECIPES
    from tokenmill.models.quantization.convert import Settings, check_destination, quantize_checkpoint
    from tokenmill.models.quantization.layouts import LAYOUTS, default_layout
    from tokenmill.models.store import resolve_model
    from tokenmill.models.weights import open_checkpoint

    if recipe in ("awq", "gptq"):
        raise ConfigError(f"recipe {recipe} is not available yet: choose {', '.join(RECIPES)}")
    if calib is not None:
        raise ConfigError("--calib: no recipe that looks at activations is available yet; leave it out")
    scheme = _choice("--format", format_, SCHEMES)
    chosen = default_layout(scheme) if layout == "auto" else _choice("--layout", layout, LAYOUTS)
    settings = Settings(
        scheme, _choice("--recipe", recipe, RECIPES), chosen, experts_only, tuple(exclude), int(shard_gb * 1e9)
    )
    settings.check()
    path = resolve_model(source)
    check_destination(path, dest)
    with _progress() as tell:
        report = quantize_checkpoint(open_checkpoint(path), dest, settings, tell)
    if as_json:
        print_json({"dest": dest, **report})
    else:
        _print(report, dest)


def _choice(option: str, value: str, possible: tuple[Any, ...]) -> Any:
    from tokenmill.core.errors import ConfigError

    if value not in possible:
        raise ConfigError(f"{option} {value} is not possible: choose {', '.join(possible)}")
    return value


def _print(report: dict[str, Any], dest: Path) -> None:
    worst = sorted(report["tensors"], key=lambda line: -line["relative_error"])[:_WORST]
    rows = [(t["name"], "x".join(map(str, t["shape"])), f"{100 * t['relative_error']:.2f} %") for t in worst]
    print_table(("largest errors", "shape", "relative error"), rows)
    print(
        f"{report['num_tensors']} tensors, {human_bytes(report['source_bytes'])} -> {human_bytes(report['bytes'])}, "
        f"relative error {100 * report['relative_error_mean']:.2f} % (mean): {dest}"
    )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; elsewhere a line at each tenth."""
    with count_progress("quantising") as update:
        told = -1

        def tell(what: str, done: int, total: int) -> None:
            nonlocal told
            update(done, total)
            if not sys.stderr.isatty() and 10 * done // total > told:
                told = 10 * done // total
                note(f"{10 * told} % {what}")

        yield tell
