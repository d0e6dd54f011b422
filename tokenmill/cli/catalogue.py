"""`tokenmill catalogue`: the devices that can be priced, with source and date of every figure."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, print_json, print_table

_FILE = typer.Option(None, "--file", help="TOML with devices of your own, in the form of the built-in file.")


def build_app() -> typer.Typer:
    app = typer.Typer(help="Devices: what they do, draw and cost: list, show, measure.", no_args_is_help=True)
    app.command("list")(list_devices)
    app.command()(show)
    app.command()(measure)
    return app


def list_devices(file: Path | None = _FILE, as_json: bool = JSON_OPTION) -> None:
    """List the devices; `this_machine` has FLOP/s and bandwidth once `catalogue measure` wrote them to a file."""
    devices = _devices(file)
    if as_json:
        print_json({"devices": {key: asdict(spec) for key, spec in devices.items()}})
        return
    rows = [(key, spec.name, *_columns(spec)) for key, spec in devices.items()]
    headers = ("key", "device", "bf16 / fp8 / fp4 TFLOPS", "GB", "TB/s", "domain", "all-in W", "$/h", "as of")
    print_table(headers, rows)


def show(
    key: str = typer.Argument(help="Key of a device, e.g. gb300_nvl72, or this_machine."),
    file: Path | None = _FILE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Show every figure of a device with its source and date."""
    from tokenmill.infra.catalogue import Catalogue

    spec = Catalogue(_devices(file)).get(key)
    if as_json:
        print_json(asdict(spec))
        return
    print(f"{spec.key}: {spec.name}, {spec.domain_size} in a scale-up domain, host link {spec.host_link or '-'}")
    rows = [(name, f"{figure.value:.4g}", *_origin(figure)) for name, figure in _figures(spec)]
    rows += [(f"price, {p.kind}, $/h", f"{p.usd_per_hour:.4g}", *_origin(p)) for p in spec.prices]
    print_table(("figure", "value", "as of", "source", ""), rows)


def measure(
    output: Path = typer.Option(
        Path("catalogue.toml"), "--output", "-o", help="File to write, for TOKENMILL_CATALOGUE."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure memory bandwidth and products of this machine, and write it as a catalogue entry."""
    import time

    import torch

    from tokenmill.bench.machine_peaks import measure_peaks
    from tokenmill.infra.catalogue_parse import device_toml

    peaks = measure_peaks(torch.bfloat16)
    here = _devices(None)["this_machine"]
    text = device_toml(
        here,
        bf16_flops_per_s=peaks.flops_per_s,
        memory_bytes_per_s=peaks.read_bytes_per_s,
        source=f"measured by tokenmill with {peaks.num_threads} threads",
        as_of=time.strftime("%Y-%m-%d"),
    )
    output.write_text(text, encoding="utf-8")
    if not as_json:
        print(text, end="")
    print_json({"output": str(output), **peaks.to_dict()})


def _devices(file: Path | None) -> dict[str, Any]:
    """The catalogue and this machine, whose share of a CPU server it is priced at."""
    from dataclasses import replace

    from tokenmill.infra.catalogue import load_catalogue
    from tokenmill.infra.devices import detect_machine, machine_spec

    catalogue = load_catalogue(file)
    if "this_machine" in catalogue.devices:
        return catalogue.devices
    here = machine_spec(detect_machine(), catalogue)
    return catalogue.devices | {"this_machine": replace(here, key="this_machine")}


def _figures(spec: Any) -> list[tuple[str, Any]]:
    from tokenmill.infra.device_spec import Figure

    found = [(f"flops_per_s, {dtype}", figure) for dtype, figure in (spec.flops_per_s or {}).items()]
    return found + [(f.name, v) for f in fields(spec) if isinstance(v := getattr(spec, f.name), Figure)]


def _columns(spec: Any) -> tuple[str, ...]:
    flops, price = spec.flops_per_s or {}, spec.price()
    peaks = " / ".join(f"{flops[d].value / 1e12:.0f}" if d in flops else "-" for d in ("bf16", "fp8", "fp4"))
    bandwidth = f"{spec.memory_bytes_per_s.value / 1e12:.2f}" if spec.memory_bytes_per_s else "-"
    watts = f"{spec.all_in_w.value:.0f}" if spec.all_in_w else "-"
    usd, as_of = (f"{price.usd_per_hour:.2f} {price.kind}", price.as_of) if price else ("-", "-")
    return peaks, f"{spec.memory_bytes.value / 1e9:.0f}", bandwidth, str(spec.domain_size), watts, usd, as_of


def _origin(figure: Any) -> tuple[str, str, str]:
    notes = [figure.note] if figure.note else []
    return figure.as_of, figure.source, ", ".join(notes + (["estimated"] if figure.is_estimated else []))
