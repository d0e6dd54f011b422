"""JSON schemas from clients, checked before any backend sees them; errors name the place. Pure, torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmill.core.errors import BadRequestError
from tokenmill.engine.structured.schema_finite import first_endless
from tokenmill.engine.structured.schema_walk import LISTS, MAPS, resolve, walk

MAX_DEPTH = 64
MAX_SCHEMAS = 20_000
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def _wrong(path: str, problem: str) -> BadRequestError:
    return BadRequestError(f"{path} {problem}", param=path)


def check_schema(schema: Any, path: str) -> None:
    """Raise BadRequestError unless `schema` is well formed, not too large, and can be met by a finite value."""
    if not isinstance(schema, Mapping | bool):
        raise _wrong(path, "must be a JSON schema: an object")
    if schema is False:
        raise _wrong(path, "is false, which no value meets")
    check_depth(schema, path)
    for number, (inner, where) in enumerate(walk(schema, path)):
        if number == MAX_SCHEMAS:
            raise _wrong(path, f"holds more than {MAX_SCHEMAS} schemas: make it smaller")
        if isinstance(inner, Mapping):
            _check_keywords(inner, where)
            _check_reference(inner, schema, where)
        elif not isinstance(inner, bool):
            raise _wrong(where, "must be a JSON schema: an object, true or false")
    endless = first_endless(schema, path)
    if endless is not None:
        raise _wrong(endless, "contains itself without an end, so no value can meet it: make a property optional")


def check_depth(value: Any, path: str) -> None:
    """Raise BadRequestError for JSON nested deeper than a schema needs; not recursive itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, Mapping | list)
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return
    raise _wrong(path, f"is nested deeper than {MAX_DEPTH} levels: make it flatter")


def check_tool_schemas(tools: Any, path: str = "tools") -> None:
    """Raise BadRequestError unless every function's parameters are an object schema; a strict one is checked whole."""
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise _wrong(path, "must be a list of tools")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise _wrong(f"{path}[{i}].function", "must be an object with a name")
        parameters = function.get("parameters")
        if parameters is not None:
            _check_parameters(parameters, f"{path}[{i}].function.parameters", is_strict=bool(function.get("strict")))


def _check_parameters(parameters: Any, path: str, *, is_strict: bool) -> None:
    if not isinstance(parameters, Mapping):
        raise _wrong(path, "must be a JSON schema of type object")
    if parameters.get("type", "object") != "object":
        raise _wrong(f"{path}.type", f"is {parameters['type']!r}: the arguments of a function are an object")
    check_depth(parameters, path)
    if is_strict:
        check_schema(parameters, path)


# -- keywords --


def _check_keywords(schema: Mapping[str, Any], path: str) -> None:
    _check_type(schema.get("type", "object"), f"{path}.type")
    for keyword in MAPS:
        _expect(schema, keyword, path, lambda value: isinstance(value, Mapping), "an object of schemas")
    for keyword in LISTS:
        _expect(schema, keyword, path, lambda value: isinstance(value, list) and value, "a list of schemas, not empty")
    _expect(schema, "enum", path, lambda value: isinstance(value, list) and value, "a list of values, not empty")
    _expect(schema, "required", path, _is_names, "a list of names")
    _expect(schema, "pattern", path, lambda value: isinstance(value, str), "a regular expression")
    for keyword in _NUMBERS:
        _expect(schema, keyword, path, _is_number, "a number")
    for pair in _BOUNDS[1:]:
        for keyword in pair:
            _expect(
                schema, keyword, path, lambda value: _is_number(value) and value >= 0 and value == int(value), "a count"
            )
    for low, high in _BOUNDS:
        if low in schema and high in schema and schema[low] > schema[high]:
            raise _wrong(f"{path}.{low}", f"is {schema[low]}, more than {high}, which is {schema[high]}")
    _check_required(schema, path)


def _expect(schema: Mapping[str, Any], keyword: str, path: str, is_right: Callable[[Any], object], what: str) -> None:
    if keyword in schema and not is_right(schema[keyword]):
        raise _wrong(f"{path}.{keyword}", f"must be {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _check_type(value: Any, path: str) -> None:
    types = value if isinstance(value, list) else [value]
    if not types or any(name not in TYPES for name in types):
        raise _wrong(path, f"is {value!r}: possible are {', '.join(TYPES)}")


def _check_required(schema: Mapping[str, Any], path: str) -> None:
    """A required property must be one that may be there."""
    others = schema.get("additionalProperties", True) is not False or "patternProperties" in schema
    for i, name in enumerate(schema.get("required", ())):
        properties = schema.get("properties", {})
        if properties.get(name, others) is False:
            raise _wrong(f"{path}.required[{i}]", f"asks for {name!r}, which the schema does not allow")


def _check_reference(schema: Mapping[str, Any], root: Any, path: str) -> None:
    reference = schema.get("$ref")
    if reference is None:
        return
    try:
        target = resolve(root, reference) if isinstance(reference, str) else None
    except KeyError:
        target = None
    if not isinstance(target, Mapping | bool):
        raise _wrong(
            f"{path}.$ref", f"is {reference!r}, which names no schema in here: only local references are possible"
        )
