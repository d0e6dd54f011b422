"""JSON schemas that xgrammar keeps whole. What it would pass over in silence is refused, with its place. Pure.

What is written is a part of what the schema allows: blanks are fixed, patterns stand for whole texts, texts of a given
length hold no escapes. Bytes are another matter: in other texts xgrammar allows those of half a surrogate pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.engine.structured.schema_check import check_schema
from tokenmill.engine.structured.schema_walk import Schema, walk

_UNKNOWN = {
    *("not", "contains", "minContains", "maxContains", "uniqueItems", "if", "then", "else", "dependentRequired"),
    *("dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems", "additionalItems"),
    *("$dynamicRef", "$recursiveRef"),
}
_NUMBER_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LENGTHS = ("minLength", "maxLength")
_TEXT_LIMITS = ("pattern", "format", *_LENGTHS)
_OBJECT_LIMITS = ("properties", "required", "additionalProperties", "patternProperties", "propertyNames")
_COUNTS = ("minProperties", "maxProperties", "minItems", "maxItems")
_LIMITS = (*_NUMBER_LIMITS, *_TEXT_LIMITS, *_OBJECT_LIMITS, *_COUNTS, "items", "prefixItems")
#: Of these xgrammar reads one and passes over whatever else limits the value, in this order.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")

#: Quotes, backslashes and control characters, by themselves or spelt out.
_UNQUOTED = re.compile(r'["\x00-\x1f]|\\[\\xuc0-9nrtfv"]')

_DATE = (
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#: Of a text, no escapes; range by range of UTF-8, whose ends xgrammar mistakes in ranges that go across.
_CHARACTER = "[ !#-\\[\\]-~\u00a1-\u07ff\u0800-\ud7ff\ue000-\uffff\U00010000-\U0010ffff]"
_FORMATS = {
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "date": _DATE,
    "date-time": rf"{_DATE}T{_TIME}(\.[0-9]{{1,6}})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])",
}


def parse_json(source: str, param: str) -> Any:
    try:
        return json.loads(source)
    except RecursionError:
        raise BadRequestError(f"{param} is nested too deep: make it flatter", param=param) from None
    except ValueError as error:
        raise BadRequestError(f"{param} is no JSON ({error}): correct it", param=param) from None


def enforced_schema(schema: Any, path: str) -> Any:
    """The schema, narrowed in place. BadRequestError where it is wrong, CapabilityError where it would not be kept."""
    check_schema(schema, path)
    places = [(inner, where) for inner, where in walk(schema, path) if isinstance(inner, Mapping)]
    for inner, where in places:
        for keyword, why in _faults(inner):
            place = f"{where}.{keyword}"
            raise CapabilityError(
                f"{place} cannot be enforced by grammar backend 'xgrammar' ({why}): leave it out, or start the "
                "server with --grammar-backend llguidance",
                param=place,
            )
    for inner, _ in places:
        _narrow(inner)
    return schema


def _narrow(schema: Any) -> None:
    """To what xgrammar does keep: in place, a part of what the schema allows."""
    if schema.get("properties"):
        schema["additionalProperties"] = False  # a name that comes again in escapes would get around its own schema
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")  # they are apart
    if any(limit in schema for limit in _LENGTHS):
        # counted by xgrammar, control characters are written as they are, which is no JSON
        low, high = int(schema.pop("minLength", 0)), schema.pop("maxLength", None)
        schema["pattern"] = f"^{_CHARACTER}{{{low},{'' if high is None else int(high)}}}$"
    elif "pattern" in schema:
        schema["pattern"] = rewritten(schema["pattern"])
    if "patternProperties" in schema:
        schema["patternProperties"] = {rewritten(key): value for key, value in schema["patternProperties"].items()}
    if schema.get("format") in _FORMATS:
        schema["pattern"] = f"^{_FORMATS[schema.pop('format')]}$"  # xgrammar knows their shape, not the days of months


def _faults(schema: Schema) -> Iterator[tuple[str, str]]:
    """(keyword, why it would not be kept)"""
    for keyword in schema:
        if keyword in _UNKNOWN and schema[keyword] is not (keyword != "uniqueItems"):
            yield keyword, "it does not know this keyword"
    yield from _together(schema)
    yield from _untyped(schema)
    yield from _text(schema)
    yield from _object(schema)
    if "multipleOf" in schema and (schema.get("type") != "integer" or set(schema) & set(_NUMBER_LIMITS[:4])):
        yield "multipleOf", "only for integers without other limits"
    if isinstance(schema.get("items"), list):
        yield "items", "a list of schemas belongs in prefixItems"


def _together(schema: Schema) -> Iterator[tuple[str, str]]:
    present = [keyword for keyword in _ALONE if keyword in schema]
    if not present:
        return
    first, *more = present
    others = [*more, *(keyword for keyword in _LIMITS if keyword in schema)]
    if others:
        yield others[0], f"it is passed over beside {first}"
    if first in ("const", "enum") and "type" in schema:
        values = [schema["const"]] if first == "const" else schema["enum"]
        if not all(_types_of(value) & _types(schema) for value in values):
            yield first, "not every value is of the type"
    elif first not in ("const", "enum") and "type" in schema:
        yield "type", f"it is passed over beside {first}"
    if first == "allOf" and len(schema["allOf"]) > 1:
        yield "allOf", "only of one schema"
    if first == "oneOf" and not all(_are_apart(a, b) for a, b in combinations(schema["oneOf"], 2)):
        yield "oneOf", "more than one of its schemas may hold; anyOf is possible"


def _untyped(schema: Schema) -> Iterator[tuple[str, str]]:
    if "type" not in schema:
        for keyword in (*_NUMBER_LIMITS, *_TEXT_LIMITS, *_COUNTS):
            if keyword in schema:
                yield keyword, "only beside a type"


def _text(schema: Schema) -> Iterator[tuple[str, str]]:
    if sum(("pattern" in schema, "format" in schema, any(limit in schema for limit in _LENGTHS))) > 1:
        yield next(k for k in (*_LENGTHS, "format") if k in schema), "only one of pattern, format and a length"
    if "pattern" in schema:
        yield from _pattern(schema["pattern"], "pattern")


def _pattern(pattern: str, keyword: str) -> Iterator[tuple[str, str]]:
    if has_inner_anchor(pattern):
        yield keyword, "an anchor within a pattern"
    if _UNQUOTED.search(pattern):
        yield keyword, "a pattern of characters that JSON escapes, which it writes as they are"


def _object(schema: Schema) -> Iterator[tuple[str, str]]:
    properties = schema.get("properties", {})
    if any(name not in properties for name in schema.get("required", ())):
        yield "required", "only of properties that are listed"
    if schema.get("minProperties", 0) > 1 and schema["minProperties"] > len(properties):
        yield "minProperties", "only of properties that are listed"
    patterns = schema.get("patternProperties")
    if patterns is not None and (
        len(patterns) > 1 or properties or "propertyNames" in schema or schema.get("additionalProperties") is not False
    ):
        yield "patternProperties", "only one pattern, without other properties"
    for pattern in patterns or ():
        yield from _pattern(pattern, "patternProperties")
    if "propertyNames" in schema and properties:
        yield "propertyNames", "it is passed over beside properties"


def has_inner_anchor(pattern: str) -> bool:
    """Whether ^ or $ stands where text goes on: xgrammar matches the whole text, and passes over those."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.S)
    return re.search(r"[^|(]\^|\$[^|)]", bare) is not None


def rewritten(pattern: str) -> str:
    """The same texts, in what xgrammar reads rightly: `(x*)?` lets x stand alone behind the group, `.` is no UTF-8."""
    pieces = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, flags=re.S)
    written: list[str] = []
    for before, piece in zip(["", *pieces], pieces, strict=False):
        if piece == "?" and before in ("*", "+", "?", "}"):
            continue  # lazy or not, the same texts match
        written.append("{0,1}" if piece == "?" and before != "(" else _CHARACTER if piece == "." else piece)
    return "".join(written)


# -- alternatives of which one holds at most --


def _are_apart(a: Any, b: Any) -> bool:
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return False
    if "type" in a and "type" in b and not _types(a) & _types(b):
        return True
    return any(
        _values(a["properties"][name]).isdisjoint(_values(b["properties"][name]))
        for name in set(a.get("required", ())) & set(b.get("required", ()))
        if _is_named(a, name) and _is_named(b, name)
    )


def _types(schema: Schema) -> set[str]:
    """An integer is a number."""
    types = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    return types | {"integer"} if "number" in types else types


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool) or value is None:
        return {"null" if value is None else "boolean"}
    if isinstance(value, int | float):
        return {"integer", "number"} if value == int(value) else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}


def _is_named(schema: Schema, name: str) -> bool:
    """Whether the property is one of some given texts."""
    inner = schema.get("properties", {}).get(name)
    if not isinstance(inner, Mapping) or schema.get("type") != "object":
        return False
    values = [inner["const"]] if "const" in inner else inner.get("enum", [None])
    return all(isinstance(value, str) for value in values)


def _values(inner: Schema) -> set[str]:
    return {inner["const"]} if "const" in inner else set(inner["enum"])
