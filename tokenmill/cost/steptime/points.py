"""Published measurements as rows, read from CSV; the package brings a file of them. Not responsible for: predicting.

Every row has its date and address. Rows differ in what they say: some name devices, layouts and concurrency, some are
read off a published frontier and have only tokens per second per user and per device.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tokenmill.core.errors import ConfigError

_BUILTIN = "data/published-points.csv"
_HARDWARE = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}
_MODELS = {
    "deepseek-v4-pro": "deepseek-v4-pro",
    "deepseek-v4-flash": "deepseek-v4-flash",
    "deepseek-r1-0528": "deepseek-r1",
    "gpt-oss-120b": "gpt-oss-120b",
}
_NEEDED = ("id", "curve", "model", "hardware", "precision", "tok_s_gpu_total", "date")


@dataclass(frozen=True, slots=True)
class Point:
    """One row; None where it says nothing. `tput_per_gpu`: input and output tokens per second and device."""

    id: str
    curve: str
    kind: str
    model: str
    hardware: str
    engine: str
    precision: str
    spec: str
    is_disagg: bool | None
    prefill_cfg: str
    decode_cfg: str
    scenario: str
    date: str
    source: str
    isl: float | None
    osl: float | None
    gpus: int | None
    prefill_gpus: int | None
    decode_gpus: int | None
    concurrency: float | None
    tput_per_gpu: float | None
    tok_s_user: float | None
    tpot_ms: float | None

    def why_not(self) -> str | None:
        """Why this row cannot be predicted; None: it can."""
        if self.tput_per_gpu is None:
            return "no tokens per second and device"
        if self.isl is None or self.osl is None or self.scenario != "fixed":
            return f"scenario {self.scenario}: lengths unknown"
        if self.model not in _MODELS.values():
            return f"model {self.model} has no price model"
        if self.tok_s_user is None and (self.concurrency is None or self.gpus is None):
            return "neither interactivity nor concurrency and devices"
        return None


def read_points(path: str | Path | None = None) -> list[Point]:
    """Rows of a CSV file, or those of the package; ConfigError naming file and line of the first fault."""
    if path is None:
        text = resources.files("tokenmill.cost.steptime").joinpath(_BUILTIN).read_text(encoding="utf-8")
        return _parse(text, "published points")
    try:
        return _parse(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"points {path} cannot be read: {error}") from None


def _parse(text: str, name: str) -> list[Point]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in _NEEDED if column not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"points {name} lack the columns {', '.join(missing)}: add them")
    points = []
    for row in reader:
        try:
            points.append(_point({key: (value or "").strip() for key, value in row.items() if isinstance(key, str)}))
        except ValueError as error:
            raise ConfigError(f"points {name}, line {reader.line_num}: {error}") from None
    return points


def _point(row: dict[str, str]) -> Point:
    model, hardware = row["model"].lower(), row["hardware"].lower()
    return Point(
        id=row["id"],
        curve=row["curve"],
        kind=row.get("kind", ""),
        model=_MODELS.get(model, model),
        hardware=_HARDWARE.get(hardware, hardware),
        engine=row.get("engine", ""),
        precision={"mxfp4": "fp4", "nvfp4": "fp4"}.get(row["precision"], row["precision"]),
        spec=row.get("spec", ""),
        is_disagg={"1": True, "0": False}.get(row.get("disagg", "")),
        prefill_cfg=row.get("prefill_cfg", ""),
        decode_cfg=row.get("decode_cfg", ""),
        scenario=row.get("scenario") or "fixed",
        date=row["date"],
        source=row.get("source", ""),
        isl=_number(row, "isl"),
        osl=_number(row, "osl"),
        gpus=_count(row, "gpus"),
        prefill_gpus=_count(row, "prefill_gpus"),
        decode_gpus=_count(row, "decode_gpus"),
        concurrency=_number(row, "concurrency"),
        tput_per_gpu=_number(row, "tok_s_gpu_total"),
        tok_s_user=_number(row, "tok_s_user"),
        tpot_ms=_number(row, "tpot_ms"),
    )


def _number(row: dict[str, str], key: str) -> float | None:
    text = row.get(key, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{key}={text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{key}={text!r} is not a positive number")
    return value


def _count(row: dict[str, str], key: str) -> int | None:
    value = _number(row, key)
    return None if value is None else int(value)
