"""Schemas are refused with the place of the fault; good ones pass, however they refer to themselves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.structured.helpers import PERSON, TREE, object_of
from tokenmill.core.errors import BadRequestError
from tokenmill.engine.structured import schema_check
from tokenmill.engine.structured.schema_check import MAX_DEPTH, check_schema, check_tool_schemas
from tokenmill.engine.structured.schema_walk import resolve


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


_LINKED = {"properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}, "type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        PERSON,
        TREE,
        _LINKED,
        {**_LINKED, "required": ["value"]},
        {"anyOf": [{"type": "null"}, object_of(next={"$ref": "#"})]},
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"$ref": "#"}, "minItems": 1},
        {"type": "object", "required": ["a"], "patternProperties": {"^a": {}}, "additionalProperties": False},
        {"enum": [{"$ref": "nowhere"}], "default": {"type": 5}},
        {"$ref": "#/$defs/a~1b/items/0", "$defs": {"a/b": {"items": [{"type": "string"}]}}},
        {"properties": {"type": {"type": "string"}, "items": {"type": "integer"}, "$ref": {"type": "string"}}},
        {"properties": {"required": {"enum": [1, "x", None]}}, "required": ["required"]},
        {"minimum": 3, "maximum": 3, "minLength": 0, "maxLength": 2.0, "multipleOf": 0.5},
        _nested(MAX_DEPTH - 2),
    ],
)
def test_good_schemas_pass(schema: Any) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("x", "s"),
        (None, "s"),
        (False, "s"),
        ({"type": "foo"}, "s.type"),
        ({"type": 5}, "s.type"),
        ({"type": []}, "s.type"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": 5}}, "s.properties.a"),
        ({"properties": {"a": {"items": "x"}}}, "s.properties.a.items"),
        ({"items": [{}, 5]}, "s.items[1]"),
        ({"anyOf": []}, "s.anyOf"),
        ({"oneOf": {}}, "s.oneOf"),
        ({"allOf": [{}, {"enum": []}]}, "s.allOf[1].enum"),
        ({"enum": "x"}, "s.enum"),
        ({"required": "a"}, "s.required"),
        ({"required": [5]}, "s.required"),
        ({"pattern": 5}, "s.pattern"),
        ({"minimum": "1"}, "s.minimum"),
        ({"exclusiveMinimum": True}, "s.exclusiveMinimum"),
        ({"minLength": -1}, "s.minLength"),
        ({"maxItems": 1.5}, "s.maxItems"),
        ({"minimum": 5, "maximum": 3}, "s.minimum"),
        ({"properties": {"a": {"minItems": 3, "maxItems": 1}}}, "s.properties.a.minItems"),
        ({"type": "object", "additionalProperties": False, "required": ["a"]}, "s.required[0]"),
        ({"properties": {"a": False}, "required": ["b", "a"]}, "s.required[1]"),
        ({"$ref": "#/$defs/x"}, "s.$ref"),
        ({"$ref": "https://example.com/x"}, "s.$ref"),
        ({"$ref": 5}, "s.$ref"),
        ({"$ref": "#/enum/0", "enum": ["x"]}, "s.$ref"),
        ({"$ref": "#/enum/9", "enum": ["x"]}, "s.$ref"),
        ({"$ref": "#/enum/x", "enum": ["x"]}, "s.$ref"),
        (_nested(MAX_DEPTH + 1), "s"),
        (_nested(50_000), "s"),
    ],
)
def test_faults_are_named_by_their_path(schema: Any, path: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        check_schema(schema, "s")
    assert caught.value.param == path and caught.value.message.startswith(path)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$ref": "#"}, "s"),
        (object_of(a={"$ref": "#"}), "s.properties.a"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, "s.$defs.x"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "s.items"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1, "prefixItems": [{"$ref": "#"}]}, "s.prefixItems[0]"),
        ({"allOf": [{"type": "object"}, object_of(a={"$ref": "#"})]}, "s.allOf[1].properties.a"),
        ({"anyOf": [object_of(a={"$ref": "#"}), object_of(b={"$ref": "#"})]}, "s.anyOf[1].properties.b"),
        ({"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["z"]}, "s.additionalProperties"),
    ],
)
def test_recursion_without_an_end_is_refused(schema: Any, path: str) -> None:
    with pytest.raises(BadRequestError, match="without an end") as caught:
        check_schema(schema, "s")
    assert caught.value.param == path


def test_the_number_of_schemas_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_check, "MAX_SCHEMAS", 10)
    check_schema({"properties": {str(i): {} for i in range(9)}}, "s")
    with pytest.raises(BadRequestError, match="more than 10"):
        check_schema({"properties": {str(i): {} for i in range(10)}}, "s")


def _tool(parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}


def test_tools_need_object_schemas() -> None:
    loose = {"type": "object", "properties": {"a": {"type": "whatever"}}}
    check_tool_schemas([_tool(PERSON), _tool(None), _tool({}), _tool(loose), {"function": {"name": "g"}}])
    for tools, path in [
        ("x", "tools"),
        ([5], "tools[0].function"),
        ([_tool(PERSON), _tool([])], "tools[1].function.parameters"),
        ([_tool({"type": "string"})], "tools[0].function.parameters.type"),
        ([_tool(loose, strict=True)], "tools[0].function.parameters.properties.a.type"),
        ([_tool(_nested(5000))], "tools[0].function.parameters"),
    ]:
        with pytest.raises(BadRequestError) as caught:
            check_tool_schemas(tools)
        assert caught.value.param == path


def test_references() -> None:
    assert resolve({"a": [1, 2]}, "#/a/1") == 2 and resolve({"": 5}, "#/") == 5
    with pytest.raises(KeyError):
        resolve({}, "a")
