"""TOML tables -> device entries, with every figure checked and given its source and date.

The form of the file is described at the top of catalogue.toml. Not responsible for: finding or merging files.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.infra.device_spec import DeviceKind, DeviceSpec, Figure, Price, PriceKind

#: TOML key -> (field of DeviceSpec, factor to base units). The edge where GB and Gbit become bytes.
_FIGURES: dict[str, tuple[str, float]] = {
    "memory_gb": ("memory_bytes", 1e9),
    "usable_memory_gb": ("usable_memory_bytes", 1e9),
    "memory_gb_per_s": ("memory_bytes_per_s", 1e9),
    "scale_up_gb_per_s": ("scale_up_bytes_per_s", 1e9),
    "scale_out_gbit_per_s": ("scale_out_bytes_per_s", 1e9 / 8),
    "host_link_gb_per_s": ("host_link_bytes_per_s", 1e9),
    "tdp_w": ("tdp_w", 1.0),
    "all_in_w": ("all_in_w", 1.0),
    "utility_w": ("utility_w", 1.0),
}
_DEVICE_KEYS = (
    *("name", "kind", "domain_size", "num_cores", "host_link", "nvml_names", "source", "as_of", "tflops", "prices"),
    *_FIGURES,
)
_ORIGIN_KEYS = ("source", "as_of", "estimated", "note")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_REQUIRED = [f.name for f in fields(DeviceSpec) if f.name in ("name", "kind", "domain_size", "memory_bytes")]

#: Fields of DeviceSpec that one file gives for one device; a user's file may give only some.
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in which file we are: for messages, and for the source and date that a figure inherits."""

    file: str
    path: str
    sources: Mapping[str, tuple[str, str]]
    source: str | None = None
    as_of: str | None = None

    def inside(self, name: object, *, source: str | None = None, as_of: str | None = None) -> _Place:
        return _Place(self.file, f"{self.path}.{name}", self.sources, source or self.source, as_of or self.as_of)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"catalogue {self.file}: {self.path}: {problem}")


def parse_entries(text: str, file: str) -> dict[str, Fields]:
    """Device key -> the fields that `text` gives; ConfigError naming file and path of the first fault."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"catalogue {file} is not TOML: {error}") from None
    root = _Place(file, "top level", {})
    _check_keys(data, ("sources", "devices"), root)
    sources = {key: _parse_source(value, key, file) for key, value in _table(data.get("sources", {}), root).items()}
    devices = _table(data.get("devices", {}), root)
    return {key: _parse_device(value, _Place(file, f"devices.{key}", sources)) for key, value in devices.items()}


def merge_entries(base: Mapping[str, Fields], over: Mapping[str, Fields]) -> dict[str, Fields]:
    """`over` wins field by field (FLOP/s by dtype); a list of prices replaces the other."""
    merged = {key: dict(fields_) for key, fields_ in base.items()}
    for key, given in over.items():
        mine = merged.setdefault(key, {})
        flops = {**mine.get("flops_per_s", {}), **given.get("flops_per_s", {})}
        mine.update(given)
        if flops:
            mine["flops_per_s"] = flops
    return merged


def build_spec(key: str, given: Fields, file: str) -> DeviceSpec:
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        raise ConfigError(f"catalogue {file}: devices.{key} is new but lacks {', '.join(missing)}: add them")
    return DeviceSpec(key=key, **given)


def _parse_source(value: Any, key: str, file: str) -> tuple[str, str]:
    place = _Place(file, f"sources.{key}", {})
    table = _table(value, place)
    _check_keys(table, ("title", "as_of"), place)
    return _text(table.get("title"), place.inside("title")), _date(table.get("as_of"), place.inside("as_of"))


def _parse_device(value: Any, place: _Place) -> Fields:
    table = _table(value, place)
    _check_keys(table, _DEVICE_KEYS, place)
    here = _with_origin(place, table)
    given: Fields = {}
    for key, item in table.items():
        at = _with_origin(place.inside(key), table)
        if key in _FIGURES:
            field, factor = _FIGURES[key]
            given[field] = _figure(item, factor, at)
        elif key == "tflops":
            given["flops_per_s"] = {d: _figure(v, 1e12, at.inside(d)) for d, v in _table(item, at).items()}
        elif key == "prices":
            given["prices"] = tuple(_price(p, here.inside(f"prices[{i}]")) for i, p in enumerate(_list(item, at)))
        elif key not in ("source", "as_of"):
            given[key] = _plain(key, item, at)
    return given


def _plain(key: str, item: Any, at: _Place) -> Any:
    if key == "kind":
        return DeviceKind(_one_of(item, DeviceKind, at))
    if key == "nvml_names":
        return tuple(_text(name, at) for name in _list(item, at))
    if key in ("domain_size", "num_cores"):
        number = _positive(item, at)
        if key == "domain_size" and number != int(number):
            raise at.error(f"{item!r} is not a whole number")
        return int(number) if key == "domain_size" else number
    return _text(item, at)


def _figure(item: Any, factor: float, at: _Place) -> Figure:
    table = item if isinstance(item, dict) else {"value": item}
    _check_keys(table, ("value", *_ORIGIN_KEYS), at)
    return Figure(_positive(table.get("value"), at) * factor, **_origin(table, at))


def _price(item: Any, at: _Place) -> Price:
    table = _table(item, at)
    _check_keys(table, ("kind", "usd_per_hour", *_ORIGIN_KEYS), at)
    kind = PriceKind(_one_of(table.get("kind"), PriceKind, at.inside("kind")))
    return Price(kind, _positive(table.get("usd_per_hour"), at.inside("usd_per_hour")), **_origin(table, at))


def _origin(table: Mapping[str, Any], at: _Place) -> dict[str, Any]:
    """source, as_of, is_estimated, note of a figure; a missing source or date is an error, not a guess."""
    here = _with_origin(at, table)
    if here.source is None or here.as_of is None:
        raise at.error('has no source and date: add source = "where from" and as_of = "YYYY-MM"')
    estimated = table.get("estimated", False)
    if not isinstance(estimated, bool):
        raise at.error(f"estimated={estimated!r} must be true or false")
    note = _text(table["note"], at) if "note" in table else ""
    return {"source": here.source, "as_of": here.as_of, "is_estimated": estimated, "note": note}


def _with_origin(place: _Place, table: Mapping[str, Any]) -> _Place:
    """`place` with the source and date that `table` states; a key of [sources] brings its own date."""
    source, as_of = table.get("source"), table.get("as_of")
    if source is not None:
        title, dated = place.sources.get(_text(source, place), (source, None))
        return _Place(place.file, place.path, place.sources, title, _date(as_of, place) if as_of else dated)
    return _Place(place.file, place.path, place.sources, place.source, _date(as_of, place) if as_of else place.as_of)


def _check_keys(table: Mapping[str, Any], possible: Iterable[str], place: _Place) -> None:
    names = list(possible)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(names)}"
            raise place.error(f"key {key!r} is unknown: {hint}")


def _table(value: Any, place: _Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.error(f"{value!r} is not a table")
    return value


def _list(value: Any, place: _Place) -> list[Any]:
    if not isinstance(value, list):
        raise place.error(f"{value!r} is not a list")
    return value


def _text(value: Any, place: _Place) -> str:
    if not isinstance(value, str) or not value:
        raise place.error(f"{value!r} is not a text")
    return value


def _positive(value: Any, place: _Place) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value > 0):
        raise place.error(f"{value!r} is not a positive number")
    return float(value)


def _date(value: Any, place: _Place) -> str:
    """TOML dates and text alike."""
    if not _DATE.fullmatch(str(value)):
        raise place.error(f'as_of={value!r} is not a date: write "YYYY-MM" or "YYYY-MM-DD"')
    return str(value)


def _one_of(value: Any, enum: type[DeviceKind] | type[PriceKind], place: _Place) -> str:
    names = [member.value for member in enum]
    if value not in names:
        raise place.error(f"{value!r} is unknown; possible: {', '.join(names)}")
    return str(value)


def device_toml(
    spec: DeviceSpec, *, bf16_flops_per_s: float, memory_bytes_per_s: float, source: str, as_of: str
) -> str:
    """`spec` with measured peaks, in the form that parse_entries reads; other figures keep their own sources."""
    lines = [f"[devices.{spec.key}]", f"name = {_quoted(spec.name)}", f"kind = {_quoted(spec.kind.value)}"]
    lines += [f"domain_size = {spec.domain_size}", f"source = {_quoted(source)}", f"as_of = {_quoted(as_of)}"]
    lines += [f"memory_gb_per_s = {memory_bytes_per_s / 1e9:.4g}"]
    lines += [f"tflops = {{ bf16 = {bf16_flops_per_s / 1e12:.4g} }}"]
    lines += [f"num_cores = {spec.num_cores:g}"] if spec.num_cores else []
    for key, (field, factor) in _FIGURES.items():
        figure = getattr(spec, field)
        if figure is not None and key != "memory_gb_per_s":
            lines.append(f"{key} = {{ value = {figure.value / factor:.6g}, {_origin_toml(figure)} }}")
    lines.append("prices = [")
    lines += [
        f"    {{ kind = {_quoted(p.kind.value)}, usd_per_hour = {p.usd_per_hour:.6g}, {_origin_toml(p)} }},"
        for p in spec.prices
    ]
    return "\n".join([*lines, "]"]) + "\n"


def _origin_toml(figure: Figure | Price) -> str:
    parts = [f"source = {_quoted(figure.source)}", f"as_of = {_quoted(figure.as_of)}"]
    parts += ["estimated = true"] if figure.is_estimated else []
    return ", ".join(parts + ([f"note = {_quoted(figure.note)}"] if figure.note else []))


def _quoted(text: str) -> str:
    """As a TOML string (JSON's escapes are TOML's)."""
    return json.dumps(text, ensure_ascii=False)
