"""Whether a JSON schema can be met by a finite value: a property that requires its own parent cannot. Pure.

Only recursion is looked at; contradictions between keywords are not this file's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenmill.engine.structured.schema_walk import resolve, walk

_SCALARS = {"string", "number", "integer", "boolean", "null"}


def first_endless(root: Any, path: str) -> str | None:
    """Path of an innermost schema that no finite value meets, None when the root can be met.

    Least fixpoint: nothing is finite to begin with, then whatever needs only finite parts, until nothing changes.
    """
    nodes = [(schema, where) for schema, where in walk(root, path) if isinstance(schema, Mapping)]
    finite: set[int] = set()
    is_changing = True
    while is_changing:
        before = len(finite)
        for schema, _ in reversed(nodes):  # inner ones first
            if id(schema) not in finite and _is_finite(schema, root, finite):
                finite.add(id(schema))
        is_changing = len(finite) > before
    if _holds(root, finite):
        return None
    return next(where for schema, where in reversed(nodes) if id(schema) not in finite)


def _holds(schema: Any, finite: set[int]) -> bool:
    return schema is True or (isinstance(schema, Mapping) and id(schema) in finite)


def _is_finite(schema: Mapping[str, Any], root: Any, finite: set[int]) -> bool:
    if "$ref" in schema and not _holds(resolve(root, schema["$ref"]), finite):
        return False
    for keyword, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        if keyword in schema and not enough(_holds(inner, finite) for inner in schema[keyword]):
            return False
    if "enum" in schema or "const" in schema:
        return True
    types = schema.get("type", [])
    types = {types} if isinstance(types, str) else set(types)
    if not types or types & _SCALARS:
        return True
    return ("object" in types and _object(schema, finite)) or ("array" in types and _array(schema, finite))


def _object(schema: Mapping[str, Any], finite: set[int]) -> bool:
    properties = schema.get("properties", {})
    others = [schema.get("additionalProperties", True), *schema.get("patternProperties", {}).values()]
    return all(
        any(_holds(inner, finite) for inner in ([properties[name]] if name in properties else others))
        for name in schema.get("required", ())
    )


def _array(schema: Mapping[str, Any], finite: set[int]) -> bool:
    items = schema.get("items", True)
    first = schema.get("prefixItems", items if isinstance(items, list) else [])
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    needed = schema.get("minItems", 0)
    return all(_holds(inner, finite) for inner in first[:needed]) and (needed <= len(first) or _holds(rest, finite))
