"""Checks of the xgrammar backend, for run.py, which puts the package beside them."""

from __future__ import annotations

import json
import random
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.structured.engines import byte_engine, request, run, write_byte_llama
from tests.structured.helpers import GRAMMARS, PERSON, TREE, accepts, json_schema, object_of, walk
from tests.structured.schemas import draw_schema
from tests.structured.validator import problem
from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.core.request import FinishReason
from tokenmill.engine.structured.base import GRAMMAR_BACKENDS, GrammarBackend
from tokenmill.engine.structured.conformance import check_grammar_backend
from tokenmill.text.tokenizer import Tokenizer

DATA = Path(__file__).resolve().parents[2] / "data" / "byte-tokenizer"
PADDING = 13
#: As in the built-in backend's test, without a multiple and a range of one number, which xgrammar cannot keep together.
SCORE = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 10}, {"type": "null"}]}
NEAR_PERSON = {**PERSON, "properties": {**PERSON["properties"], "score": SCORE}}
CONFORMANCE = {**GRAMMARS, "person": json_schema(NEAR_PERSON)}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(DATA)


@pytest.fixture(scope="module")
def backend(tokenizer: Tokenizer) -> GrammarBackend:
    made: GrammarBackend = GRAMMAR_BACKENDS.load("xgrammar")(tokenizer, tokenizer.vocab_size + PADDING)
    return made


@pytest.mark.parametrize("name", CONFORMANCE)
def test_it_conforms(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    size, ends = tokenizer.vocab_size + PADDING, tokenizer.eos_token_ids
    check_grammar_backend(backend, [CONFORMANCE[name]] * 5, vocab_size=size, eos_token_ids=ends)


def test_drawn_schemas_are_kept_or_refused(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    num_ended = num_refused = 0
    for seed in range(400):
        schema = draw_schema(seed)
        try:
            compiled = backend.compile(json_schema(schema))
        except CapabilityError:
            num_refused += 1
            continue
        ids = walk(compiled.new_matcher(), random.Random(seed), tokenizer.eos_token_ids, 3000)
        if len(ids) < 3000:
            num_ended += 1
            # a plain text of random bytes may hold those of half a surrogate pair: docs/decisions/0005
            text = bytes(ids).decode("utf-8", "surrogatepass")
            found = problem(json.loads(text), schema)
            assert found is None, f"{json.dumps(schema)}: {text!r}: {found}"
    assert num_ended > 200 and num_refused < 200, (num_ended, num_refused)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (object_of(a={"type": "integer", "not": {"const": 3}}), "properties.a.not"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, "allOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"minimum": 5}, "minimum"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "maxLength"),
        ({"type": "string", "pattern": '^"$'}, "pattern"),
        ({"type": "string", "enum": ["a", 1]}, "enum"),
        ({"type": "object", "required": ["q"]}, "required"),
    ],
)
def test_what_it_would_pass_over_is_refused(backend: GrammarBackend, schema: Any, place: str) -> None:
    with pytest.raises(CapabilityError, match="xgrammar") as caught:
        backend.compile(json_schema(schema))
    assert caught.value.param == f"response_format.{place}"


def test_calls_of_tools_are_refused(backend: GrammarBackend) -> None:
    with pytest.raises(CapabilityError, match="--grammar-backend llguidance"):
        backend.compile(Grammar(kind=GrammarKind.TOOL_CALLS, source="{}", param="tools"))


@pytest.mark.parametrize("source", ["(?=a)b", r"\bfoo", "[z-a]", "a$b", "a^b"])
def test_expressions_that_it_cannot_read(backend: GrammarBackend, source: str) -> None:
    with pytest.raises(BadRequestError):
        backend.compile(Grammar(kind=GrammarKind.REGEX, source=source))


def test_alternatives_told_apart_by_a_constant(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    schema = {"oneOf": [object_of(kind={"const": "a"}), object_of(kind={"const": "b"}, n={"type": "integer"})]}
    compiled = backend.compile(json_schema(schema))
    assert accepts(compiled.new_matcher(), tokenizer, '{"kind": "b", "n": 1}')
    assert not accepts(compiled.new_matcher(), tokenizer, '{"kind": "a", "n": 1}')


@pytest.mark.parametrize("pattern", ["A[a-z]{0,2}( [a-z]*)?", "A(b?b?)( b+?)?", "A[a-z]*(?: [a-z]b?)+", "A.?[A ]?"])
def test_patterns_mean_what_they_do_elsewhere(backend: GrammarBackend, tokenizer: Tokenizer, pattern: str) -> None:
    compiled = backend.compile(json_schema({"type": "string", "pattern": f"^{pattern}$"}))
    for text in ("".join(letters) for length in range(7) for letters in product("Ab ", repeat=length)):
        is_taken = accepts(compiled.new_matcher(), tokenizer, f'"{text}"')
        assert is_taken == bool(re.fullmatch(pattern, text)), text


def test_answers_of_an_engine(tmp_path: Path) -> None:
    engine = byte_engine(write_byte_llama(tmp_path), grammar_backend="xgrammar")
    schemas = {"person": NEAR_PERSON, "tree": TREE, "flag": object_of(flag={"type": "boolean"})}
    asked = [request(f"{name}{i}", json_schema(schemas[name]), seed=i) for name in schemas for i in range(4)]
    outputs = run(engine, *asked)
    num_ended = 0
    for name, output in outputs.items():
        assert output.error is None, output.error
        if output.finish_reason is FinishReason.STOP:
            num_ended += 1
            assert problem(json.loads(output.text), schemas[name[:-1]]) is None, output.text
    assert num_ended >= 8
