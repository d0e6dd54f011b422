"""Calibrations as TOML files: of a model on this machine (measured), or of the software behind a published curve.

Each says what it rests on, when and on what. Not responsible for: measuring or fitting.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import KeyRead
from tokenmill.cost.steptime.measured import MeasuredStepTime

_VERSION = 1
_COSTS = ("decode_seq_s", "chunk_s", "sampled_s", "decode_flop_s", "prefill_flop_s", "range_factor")
_SERVED = ("served_factor", "served_step_s")


@dataclass(frozen=True, slots=True)
class Calibration:
    """`origin`: free text by name (machine, date, commit, settings), for people."""

    model: str
    step_time: MeasuredStepTime
    origin: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SoftwareCalibration:
    """Of published points: everything takes `slowdown` times as long as with the software that defaults are fitted to.

    precision  of the curve; hardware: key of the catalogue
    """

    model: str
    hardware: str
    precision: str
    slowdown: float
    range_factor: float
    origin: Mapping[str, str]


def write_calibration(calibration: Calibration | SoftwareCalibration, path: Path) -> None:
    path.write_text(to_toml(calibration), encoding="utf-8")


def to_toml(calibration: Calibration | SoftwareCalibration) -> str:
    lines = [f"version = {_VERSION}", f"model = {_text(calibration.model)}", "", "[origin]"]
    lines += [f"{name} = {_text(value)}" for name, value in calibration.origin.items()]
    body = _software_lines if isinstance(calibration, SoftwareCalibration) else _measured_lines
    return "\n".join(lines + body(calibration)) + "\n"  # type: ignore[arg-type]


def _software_lines(made: SoftwareCalibration) -> list[str]:
    lines = ["", "[software]", f"hardware = {_text(made.hardware)}", f"precision = {_text(made.precision)}"]
    return [*lines, f"slowdown = {made.slowdown:.6g}", f"range_factor = {made.range_factor:.6g}"]


def _measured_lines(calibration: Calibration) -> list[str]:
    made, lines = calibration.step_time, []
    lines += [
        "",
        "# Seconds. Table over rows of a step; costs per sequence, chunk, drawn token, attention FLOP.",
        "[costs]",
    ]
    lines += [f"rows = [{', '.join(f'{n:g}' for n in made.rows)}]"]
    lines += [f"rows_s = [{', '.join(f'{s:.6g}' for s in made.rows_s)}]"]
    lines += [f"{name} = {getattr(made, name):.6g}" for name in (*_COSTS, *_SERVED)]
    for key in made.keys:
        lines += [
            "",
            "[[keys]]",
            f"flops_per_key = {key.flops_per_key:.9g}",
            f"bytes_per_key = {key.bytes_per_key:.9g}",
        ]
        lines += [f"tokens_per_key = {key.tokens_per_key:g}"]
        if math.isfinite(key.most_keys):
            lines += [f"most_keys = {key.most_keys:g}"]
        if key.prefill_flops_per_key is not None:
            lines += [f"prefill_flops_per_key = {key.prefill_flops_per_key:.9g}"]
    return lines


def read_calibration(path: Path | str) -> Calibration | SoftwareCalibration:
    """ConfigError naming what is wrong with the file."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"calibration {path} cannot be read: {error}: write one with `tokenmill calibrate`") from None
    try:
        return _parse(data)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"calibration {path}: {what}: write it again with `tokenmill calibrate`") from None


def _parse(data: Mapping[str, Any]) -> Calibration | SoftwareCalibration:
    if data["version"] != _VERSION:
        raise ValueError(f"version {data['version']!r} is not {_VERSION}")
    origin = {name: str(value) for name, value in data.get("origin", {}).items()}
    if "software" in data:
        return _parse_software(str(data["model"]), data["software"], origin)
    costs = data["costs"]
    rows, rows_s = (tuple(float(v) for v in costs[name]) for name in ("rows", "rows_s"))
    if len(rows) < 2 or len(rows) != len(rows_s) or list(rows) != sorted(set(rows)):
        raise ValueError("costs.rows and costs.rows_s must be two lists of equal length, rows ascending")
    step_time = MeasuredStepTime(
        rows,
        rows_s,
        keys=tuple(KeyRead(**{name: float(value) for name, value in key.items()}) for key in data.get("keys", ())),
        **{name: _cost(costs, name) for name in _COSTS},
        **{name: _cost(costs, name) for name in _SERVED if name in costs},
    )
    return Calibration(str(data["model"]), step_time, origin)


def _parse_software(model: str, software: Mapping[str, Any], origin: Mapping[str, str]) -> SoftwareCalibration:
    slowdown, range_factor = (_cost(software, name) for name in ("slowdown", "range_factor"))
    if slowdown == 0 or range_factor < 1:
        raise ValueError(f"software.slowdown={slowdown}, range_factor={range_factor}: above 0, and at least 1")
    return SoftwareCalibration(
        model, str(software["hardware"]), str(software["precision"]), slowdown, range_factor, origin
    )


def _cost(costs: Mapping[str, Any], name: str) -> float:
    value = float(costs[name])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value} is not possible: 0 or more")
    return value


def _text(value: str) -> str:
    """As a TOML string (JSON's escapes are TOML's)."""
    return json.dumps(value, ensure_ascii=False)
