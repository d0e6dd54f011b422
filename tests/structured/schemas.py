"""JSON schemas of many kinds, drawn from a seed: what function-calling sets and clients send, and the corners of it."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
_KEYS = ("a", "city", "first_name", "Größe", "x-y", 'q"uote', "back\\slash", "n", "items", "type", "日本", "")
_PATTERNS = ("^[a-z]{2,6}$", "^(foo|ba[rz])-[0-9]{1,3}$", "^[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5})?$", r"^\d{3}-\d{4}$")
_FORMATS = ("date", "uuid", "ipv4")
_CONSTANTS: tuple[Any, ...] = ("fixed", 7, -0.5, True, None, [1, "two"], {"k": [None]})
_WORDS = ("red", "green", "blau", "a b", 'q"', "tab\t", "é")


def draw_schema(seed: int) -> Schema:
    """An object, as tools and response formats have it, or now and then any other kind of value at the root."""
    rng = random.Random(seed)
    if seed % 10 == 7:
        return _recursive(rng)
    if seed % 10 == 3:
        return _value(rng, 2)
    schema = _object(rng, 3)
    if seed % 4 == 0:
        schema["$defs"] = {"shared": _value(rng, 1)}
        schema["properties"]["shared"] = {"$ref": "#/$defs/shared"}
    return schema


def _value(rng: random.Random, depth: int) -> Schema:
    kinds = [_string, _string, _integer, _number, _enum, _const, _simple]
    if depth > 0:
        kinds += [_object, _array, _tuple, _any_of, _one_of, _all_of, _nullable]
    return rng.choice(kinds)(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_KEYS, k=rng.randint(0, 4))
    required = [name for name in names if rng.random() < 0.6]
    rng.shuffle(required)
    schema: Schema = {
        "type": "object",
        "properties": {name: _value(rng, depth - 1) for name in names},
        "additionalProperties": False,
    }
    if required or rng.random() < 0.5:
        schema["required"] = required
    if rng.random() < 0.3:
        schema["description"] = "what it is for"
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(0, 2)
    schema: Schema = {"type": "array", "items": _value(rng, depth - 1), "maxItems": low + rng.randint(0, 2)}
    return schema | ({"minItems": low} if low else {})


def _tuple(rng: random.Random, depth: int) -> Schema:
    inner = [_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": inner, "items": False, "minItems": len(inner)}


def _string(rng: random.Random, depth: int) -> Schema:
    kind = rng.randrange(6)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    if kind == 2:
        return {"type": "string"}
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 9)}


def _integer(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(-1000, 1000)
    return {
        "type": "integer",
        **rng.choice(
            [
                {},
                {"minimum": low, "maximum": low + rng.randint(0, 500)},
                {"exclusiveMinimum": low, "exclusiveMaximum": low + 100},
                {"multipleOf": rng.choice([2, 5, 7]), "minimum": 0, "maximum": 700},
            ]
        ),
    }


def _number(rng: random.Random, depth: int) -> Schema:
    low = rng.choice([-2.5, 0, 0.125, 10])
    return {"type": "number", **rng.choice([{}, {"minimum": low, "maximum": low + 3.25}])}


def _enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample(_WORDS, k=rng.randint(1, 4)) + rng.choice([[], [1, 2.5], [None, False]])}


def _const(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice(_CONSTANTS)}


def _simple(rng: random.Random, depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null"])}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth - 1) for _ in range(rng.randint(2, 3))]}


def _one_of(rng: random.Random, depth: int) -> Schema:
    """Kinds that exclude each other, as descriptions of variants do."""
    return {"oneOf": [_integer(rng, 0), {"type": "string", "maxLength": 4}, _object(rng, depth - 1)]}


def _all_of(rng: random.Random, depth: int) -> Schema:
    return {
        "allOf": [
            {"type": "object", "properties": {"left": _value(rng, depth - 1)}, "required": ["left"]},
            {"type": "object", "properties": {"right": _value(rng, depth - 1)}, "required": ["right"]},
        ],
        "additionalProperties": True,
        "type": "object",
        "properties": {"left": True, "right": True},
    }


def _nullable(rng: random.Random, depth: int) -> Schema:
    return {"type": [rng.choice(["string", "integer", "boolean"]), "null"]}


def _recursive(rng: random.Random) -> Schema:
    node = {
        "type": "object",
        "properties": {"value": _value(rng, 1), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}
