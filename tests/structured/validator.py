"""Whether a JSON value meets a schema, by the words of the specification (draft 2020-12): an oracle for tests.

Small and slow; knows the keywords that tests use and refuses others. Shares nothing with the backends.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime
from ipaddress import IPv4Address
from typing import Any

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v == math.floor(v),
}
_FORMATS: dict[str, Callable[[str], Any]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "uuid": uuid.UUID,
    "ipv4": IPv4Address,
    "email": lambda v: re.fullmatch(r"[^@\s]+@[^@\s]+", v) or _fail(),
}
_ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "$schema",
    "optional",
    "$comment",
}


def _fail() -> Any:
    raise ValueError


def problem(value: Any, schema: Any, root: Any = None, path: str = "$") -> str | None:
    """Why `value` does not meet `schema`, with the place; None: it does."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return None if schema else f"{path}: nothing is allowed"
    for keyword, wanted in schema.items():
        check = _KEYWORDS.get(keyword)
        assert check is not None or keyword in _ANNOTATIONS, f"the oracle does not know {keyword!r}"
        found = None if check is None else check(value, wanted, schema, root, path)
        if found is not None:
            return found
    return None


def is_valid(text: str, schema: Any) -> bool:
    return problem(json.loads(text), schema) is None


def _same(a: Any, b: Any) -> bool:
    """JSON equality: 1 is 1.0, but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _type(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    names = wanted if isinstance(wanted, list) else [wanted]
    return None if any(_TYPES[name](value) for name in names) else f"{path}: {value!r} is no {wanted}"


def _enum(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    return None if any(_same(value, one) for one in wanted) else f"{path}: {value!r} is not one of {wanted}"


def _const(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    return _enum(value, [wanted], schema, root, path)


def _bound(applies: str, measure: Callable[[Any], Any], is_met: Callable[[Any, Any], bool], word: str) -> Any:
    def check(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
        if not _TYPES[applies](value) or is_met(measure(value), wanted):
            return None
        return f"{path}: {value!r} breaks {word} {wanted}"

    return check


def _multiple(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    if not _TYPES["number"](value):
        return None
    ratio = value / wanted
    return None if abs(ratio - round(ratio)) < 1e-9 * max(1.0, abs(ratio)) else f"{path}: {value} is no multiple"


def _pattern(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    return None if not isinstance(value, str) or re.search(wanted, value) else f"{path}: {value!r} is not like {wanted}"


def _format(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        _FORMATS[wanted](value)
    except ValueError:
        return f"{path}: {value!r} is no {wanted}"
    return None


def _required(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    missing = set(wanted) - value.keys() if isinstance(value, dict) else set()
    return f"{path}: {sorted(missing)} is missing" if missing else None


def _properties(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return None
    return _first(problem(value[key], inner, root, f"{path}.{key}") for key, inner in wanted.items() if key in value)


def _additional(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    if not isinstance(value, dict):
        return None
    known = schema.get("properties", {})
    return _first(problem(value[key], wanted, root, f"{path}.{key}") for key in value if key not in known)


def _prefix_items(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    if not isinstance(value, list):
        return None
    pairs = zip(value, wanted, strict=False)
    return _first(problem(one, inner, root, f"{path}[{i}]") for i, (one, inner) in enumerate(pairs))


def _items(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    if not isinstance(value, list):
        return None
    start = len(schema.get("prefixItems", ()))
    return _first(problem(one, wanted, root, f"{path}[{i}]") for i, one in enumerate(value) if i >= start)


def _any_of(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    problems = [problem(value, inner, root, path) for inner in wanted]
    return None if None in problems else f"{path}: none of {problems}"


def _one_of(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    num_met = sum(problem(value, inner, root, path) is None for inner in wanted)
    return None if num_met == 1 else f"{path}: meets {num_met} of oneOf"


def _all_of(value: Any, wanted: Any, schema: Any, root: Any, path: str) -> str | None:
    return _first(problem(value, inner, root, path) for inner in wanted)


def _ref(value: Any, wanted: str, schema: Any, root: Any, path: str) -> str | None:
    assert wanted.startswith("#"), wanted
    target: Any = root
    for part in wanted.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        target = target[key] if isinstance(target, Mapping) else target[int(key)]
    return problem(value, target, root, path)


def _first(problems: Any) -> str | None:
    return next((found for found in problems if found is not None), None)


_KEYWORDS: dict[str, Callable[[Any, Any, Any, Any, str], str | None]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _bound("number", lambda v: v, lambda v, low: v >= low, "minimum"),
    "maximum": _bound("number", lambda v: v, lambda v, high: v <= high, "maximum"),
    "exclusiveMinimum": _bound("number", lambda v: v, lambda v, low: v > low, "exclusiveMinimum"),
    "exclusiveMaximum": _bound("number", lambda v: v, lambda v, high: v < high, "exclusiveMaximum"),
    "multipleOf": _multiple,
    "minLength": _bound("string", len, lambda v, low: v >= low, "minLength"),
    "maxLength": _bound("string", len, lambda v, high: v <= high, "maxLength"),
    "pattern": _pattern,
    "format": _format,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "prefixItems": _prefix_items,
    "items": _items,
    "minItems": _bound("array", len, lambda v, low: v >= low, "minItems"),
    "maxItems": _bound("array", len, lambda v, high: v <= high, "maxItems"),
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "$ref": _ref,
}
