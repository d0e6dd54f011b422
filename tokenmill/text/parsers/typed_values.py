"""JSON out of values that a model wrote as text, by what they look like and by the schemas of the tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def parse_json(text: str) -> Any:
    """Strict JSON (no NaN or Infinity); ValueError otherwise, also where it is nested too deep to read."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def json_value(text: str) -> str | None:
    """`text` without white space around it when it is one JSON value, else None."""
    text = text.strip()
    try:
        parse_json(text)
    except ValueError:
        return None
    return text


class ToolTypes:
    """Which parameters of the offered tools are plain strings."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._properties: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            parameters = function.get("parameters") if isinstance(function, Mapping) else None
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            if isinstance(properties, Mapping):
                self._properties[str(function.get("name"))] = properties

    def is_string(self, function: str, parameter: str) -> bool | None:
        """True: text only. False: never text. None: not said, or several types are possible."""
        schema = self._properties.get(function, {}).get(parameter)
        types = _types(schema) if isinstance(schema, Mapping) else None
        if not types:
            return None
        return None if "string" in types and len(types) > 1 else "string" in types


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """JSON types that a schema allows; None when it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {str(name) for name in declared}
    if isinstance(schema.get("enum"), list):
        return {"string" if isinstance(value, str) else "other" for value in schema["enum"]}
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list):
            inner = [_types(branch) if isinstance(branch, Mapping) else None for branch in branches]
            return None if any(types is None for types in inner) else {name for types in inner for name in types or ()}
    return None
