"""Workload files: built-in ones by name, others by path; every mistake is named with its place.

Not responsible for: what the fields mean (definition).
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tokenmill.core.errors import ConfigError
from tokenmill.core.slo import SLO
from tokenmill.workloads.definition import Load, SubAgents, Workload
from tokenmill.workloads.lengths import parse_lengths

_FOLDER = Path(__file__).parent / "definitions"
_SCALES = ("tokens", "counts", "gaps")


def workload_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_workload(name: str) -> Workload:
    """A built-in workload, or the YAML file at a path (anything with a slash or a .yaml ending)."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name not in workload_names():
        near = difflib.get_close_matches(name, workload_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"workload {name!r} is unknown: {hint}possible: {', '.join(workload_names())}, or a file")
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> Workload:
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"workload file {str(path)!r} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"workload file {str(path)!r} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"workload file {str(path)!r} must hold a mapping of fields")
    return parse_workload(value, digest=_digest(value))


def _digest(value: Mapping[str, Any]) -> str:
    """Of what the file says, not of its comments and line breaks."""
    canonical = yaml.safe_dump(dict(value), sort_keys=True, default_flow_style=True, width=10**9)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def parse_workload(value: Mapping[str, Any], *, digest: str | None = None) -> Workload:
    """ConfigError with the field's path; `digest` None: taken from the value."""
    fields = {name: _field(_FIELDS, name, item, name) for name, item in value.items() if name != "source"}
    for name in ("name", "version", "description", "prefix_tokens", "first_tokens", "output_tokens", "load"):
        if name not in fields:
            raise ConfigError(f"workload: {name} is missing: give at least {name} (see docs/benchmarks.md)")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", fields["name"]):
        raise ConfigError(f"workload: name={fields['name']!r} must be small letters, digits and dashes")
    return Workload(digest=digest or _digest(value), **fields)


def _field(readers: Mapping[str, Callable[[Any, str], Any]], name: str, value: Any, path: str) -> Any:
    if name not in readers:
        near = difflib.get_close_matches(name, readers, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(readers)}"
        raise ConfigError(f"workload: {path} is unknown: {hint}")
    return readers[name](value, path)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"workload: {path}={value!r} must be text")
    return " ".join(value.split())


def _number(low: float, high: float) -> Callable[[Any, str], float]:
    def read(value: Any, path: str) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise ConfigError(f"workload: {path}={value!r} must be a number in [{low:g}, {high:g}]")
        return value

    return read


def _count(low: int) -> Callable[[Any, str], int]:
    def read(value: Any, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ConfigError(f"workload: {path}={value!r} must be a whole number, {low} or more")
        return value

    return read


def _slo(value: Any, path: str) -> SLO:
    return SLO.parse(_text(value, path))


def _scales(value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or any(item not in _SCALES for item in value):
        raise ConfigError(f"workload: {path}={value!r} must be a list of {', '.join(_SCALES)}")
    return tuple(value)


def _nested(kind: Callable[..., Any], readers: Mapping[str, Callable[[Any, str], Any]]) -> Callable[[Any, str], Any]:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise ConfigError(f"workload: {path}={value!r} must be a mapping of {', '.join(readers)}")
        fields = {name: _field(readers, name, item, f"{path}.{name}") for name, item in value.items()}
        try:
            return kind(**fields)
        except TypeError:
            missing = ", ".join(f"{path}.{name}" for name in readers if name not in fields)
            raise ConfigError(f"workload: {path} is incomplete: give {missing}") from None

    return read


_AGENT_FIELDS = {
    "share": _number(0, 1),
    "num_agents": parse_lengths,
    "shared_tokens": _count(0),
    "brief_tokens": parse_lengths,
    "turns": parse_lengths,
    "turn_tokens": parse_lengths,
    "output_tokens": parse_lengths,
    "gap_s": parse_lengths,
    "model": _count(0),
    "num_tasks": _count(1),
}
_FIELDS = {
    "name": _text,
    "version": _count(1),
    "description": _text,
    "num_models": _count(1),
    "num_prefixes": _count(1),
    "prefix_skew": _number(0, 10),
    "prefix_tokens": parse_lengths,
    "first_tokens": parse_lengths,
    "turns": parse_lengths,
    "turn_tokens": parse_lengths,
    "output_tokens": parse_lengths,
    "gap_s": parse_lengths,
    "sub_agents": _nested(SubAgents, _AGENT_FIELDS),
    "load": _nested(Load, {"concurrency": _count(1), "rate_per_s": _number(1e-9, 1e9)}),
    "kv_pool_share": _number(1e-6, 1e6),
    "slo": _slo,
    "scales": _scales,
}
