"""Grammars of every kind, and walking a matcher at random. Not tests themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.engine.structured.base import Matcher, PackedMask
from tokenmill.text.tokenizer import Tokenizer


def json_schema(schema: Any, **fields: Any) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema), **fields)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": object_of(
            value={"type": "boolean"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
        )
    },
}
PERSON = object_of(
    name={"type": "string", "maxLength": 12},
    age={"type": "integer", "minimum": 0, "maximum": 150},
    tags={"type": "array", "items": {"enum": ["a", "bé", "c\n"]}, "maxItems": 3},
    score={"anyOf": [{"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10}, {"type": "null"}]},
)
GRAMMARS: dict[str, Grammar] = {
    "person": json_schema(PERSON),
    "tree": json_schema(TREE),
    "object": Grammar(kind=GrammarKind.JSON_OBJECT),
    "regex": Grammar(kind=GrammarKind.REGEX, source=r"[a-c]{2,5}(-[0-9]{1,3})?"),
    "gbnf": Grammar(kind=GrammarKind.EBNF, source='root ::= item ("," item)*\nitem ::= [a-z] | "(" root ")"'),
    "lark": Grammar(kind=GrammarKind.EBNF, source='start: "x" rest?\nrest: /[0-9]+/ ";"'),
    "choice": Grammar(kind=GrammarKind.CHOICE, source=json.dumps(["yes", "yesterday", 'n"o\n', "😀", "C:\\x"])),
}


def allowed_ids(mask: PackedMask) -> list[int]:
    """Reads the packed form bit by bit, or all at once where that would take too long."""
    if len(mask) > 100:
        return [int(t) for t in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]
    return [t for t in range(len(mask) * 32) if int(mask[t // 32]) >> (t % 32) & 1]


def walk(matcher: Matcher, rng: random.Random, eos_token_ids: Sequence[int], limit: int) -> list[int]:
    """Tokens drawn uniformly under the masks until an end token (not included) or `limit`."""
    taken: list[int] = []
    while len(taken) < limit:
        ids = allowed_ids(matcher.mask())
        token_id = rng.choice(ids)
        assert matcher.advance(token_id)
        if token_id in eos_token_ids:
            return taken
        taken.append(token_id)
    return taken


def take_text(matcher: Matcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the matcher takes all of `text`; it stays where it stopped."""
    return all(matcher.advance(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False))


def accepts(matcher: Matcher, tokenizer: Tokenizer, text: str) -> bool:
    return take_text(matcher, tokenizer, text) and matcher.is_accepting


def same(a: PackedMask, b: PackedMask) -> bool:
    return bool(np.array_equal(a, b))
