"""Walks over a JSON schema: every place in it that is itself a schema, with its path. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

#: Keywords by how schemas stand in them.
ONE = ("additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames", "items")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def subschemas(schema: Schema, path: str) -> Iterator[tuple[Any, str]]:
    """What stands where a schema belongs, directly inside `schema`."""
    for keyword in ONE:
        if keyword in schema and not (keyword == "items" and isinstance(schema[keyword], list)):
            yield schema[keyword], f"{path}.{keyword}"
    for keyword in (*LISTS, "items"):
        if isinstance(schema.get(keyword), list):
            for i, inner in enumerate(schema[keyword]):
                yield inner, f"{path}.{keyword}[{i}]"
    for keyword in MAPS:
        if isinstance(schema.get(keyword), Mapping):
            for name, inner in schema[keyword].items():
                yield inner, f"{path}.{keyword}.{name}"


def walk(schema: Any, path: str) -> Iterator[tuple[Any, str]]:
    """`schema` and all schemas inside it, outer ones first. Not recursive: depth is the client's choice."""
    stack = [(schema, path)]
    while stack:
        inner, where = stack.pop()
        yield inner, where
        if isinstance(inner, Mapping):
            stack.extend(reversed(list(subschemas(inner, where))))


def resolve(root: Any, reference: str) -> Any:
    """What a local reference (`#`, `#/$defs/x`) points to; KeyError when there is nothing, or it is not local."""
    if reference != "#" and not reference.startswith("#/"):
        raise KeyError(reference)
    target = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            target = target[int(name)] if isinstance(target, list) else target[name]
        except (ValueError, IndexError, TypeError, KeyError):
            raise KeyError(reference) from None
    return target
