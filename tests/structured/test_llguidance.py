"""The built-in backend: what each kind of grammar lets through, masks, roll back, and refusals with the place."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.structured.helpers import (
    GRAMMARS,
    PERSON,
    TREE,
    accepts,
    allowed_ids,
    json_schema,
    object_of,
    same,
    take_text,
    walk,
)
from tokenmill.core.errors import BadRequestError
from tokenmill.core.grammar import MAX_SOURCE_CHARS, Grammar, GrammarKind
from tokenmill.engine.structured.base import GrammarBackend, GrammarLimitError
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_llguidance
_QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

_TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "person": (
        [
            '{"name":"Ada","age":36,"tags":[],"score":null}',
            '{"name": "Ä", "age": 0, "tags": ["bé", "c\\n"], "score": 9.5}',
        ],
        ['{"age":36}', '{"name":"Ada","age":151', '{"name" :', '{  "name"', '{\n"name"', '{"name":  "', " {"],
    ),
    "tree": (['{"value":true,"children":[{"value":false,"children":[]}]}'], ['{"value":true,"children":[1']),
    "object": (["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a"  ']),
    "regex": (["ab", "abc-12", "aaaaa"], ["a-", "abcabc", "ab-1234"]),
    "gbnf": (["a", "a,b", "(a,(b)),c"], ["A", "a,,", ")"]),
    "lark": (["x", "x12;"], ["y", "x;"]),
    "choice": (["yes", "yesterday", 'n"o\n', "😀", "C:\\x"], ["no", "yess", "Y"]),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_each_kind_lets_through_what_it_says(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    compiled = backend.compile(GRAMMARS[name])
    good, bad = _TEXTS[name]
    for text in good:
        assert accepts(compiled.new_matcher(), tokenizer, text), text
    for text in bad:
        assert not take_text(compiled.new_matcher(), tokenizer, text), text


@pytest.mark.parametrize("name", GRAMMARS)
def test_mask_says_exactly_what_may_follow(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    matcher = backend.compile(GRAMMARS[name]).new_matcher()
    rng = random.Random(name)
    for _ in range(12):
        allowed = set(allowed_ids(matcher.mask()))
        assert allowed == {t for t in range(tokenizer.vocab_size) if matcher.num_allowed([t])}
        assert (0 in allowed) == matcher.is_accepting  # 0 is this vocabulary's end token
        assert (allowed == {0}) == matcher.is_finished
        if matcher.is_finished:
            return
        assert matcher.advance(rng.choice(sorted(allowed - {0})))


@pytest.mark.parametrize("name", GRAMMARS)
@_QUICK
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 8))
def test_rollback_restores_the_mask(backend: GrammarBackend, name: str, seed: int, depth: int) -> None:
    """S39: advance n, roll back n: the mask and all answers are those of before, again and again."""
    rng = random.Random(seed)
    matcher = backend.compile(GRAMMARS[name]).new_matcher()
    walk(matcher, rng, (0,), rng.randint(0, 20))
    for _ in range(3):
        before = matcher.mask(), matcher.is_accepting, matcher.is_finished
        num_taken = 0
        for _ in range(depth):  # end tokens too: a draft may hold several
            ids = allowed_ids(matcher.mask())
            num_taken += matcher.advance(rng.choice(ids))
            matcher.num_allowed([rng.randrange(256) for _ in range(3)])
        assert num_taken == depth
        matcher.rollback(num_taken)
        after = matcher.mask(), matcher.is_accepting, matcher.is_finished
        assert same(before[0], after[0]) and before[1:] == after[1:]
        if not matcher.is_finished:
            matcher.advance(rng.choice(allowed_ids(matcher.mask())))


@_QUICK
@given(seed=st.integers(0, 10**6))
def test_random_answers_are_valid(backend: GrammarBackend, tokenizer: Tokenizer, seed: int) -> None:
    matcher = backend.compile(GRAMMARS["person"]).new_matcher()
    ids = walk(matcher, random.Random(seed), (0,), 400)
    value = json.loads(tokenizer.decode(ids))
    assert list(value) == list(PERSON["properties"])
    assert isinstance(value["name"], str) and 0 <= value["age"] <= 150 and len(value["tags"]) <= 3


def test_a_model_that_likes_blanks_still_ends(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    """S40: blanks whenever they are allowed, the answer is whole before 200 tokens."""
    blanks = tokenizer.encode(" \n\t\r", add_special_tokens=False)
    for grammar in (json_schema(object_of(a={"type": "integer", "maximum": 9}, b={"enum": ["x"]})), json_schema(TREE)):
        matcher, ids = backend.compile(grammar).new_matcher(), []
        while not matcher.is_finished and len(ids) < 200:
            allowed = allowed_ids(matcher.mask())
            choice = next((t for t in blanks if t in allowed), min(allowed))
            matcher.advance(choice)
            ids.append(choice)
        assert matcher.is_accepting
        json.loads(tokenizer.decode(ids))


def test_tokens_that_may_not_follow_change_nothing(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    """S36, S37: illegal drafts are turned down, again and again, without an error."""
    matcher = backend.compile(GRAMMARS["person"]).new_matcher()
    take_text(matcher, tokenizer, '{"name":"A')
    before = matcher.mask()
    for token_id in (0, 1, 255, tokenizer.vocab_size + 1, *tokenizer.encode("\n", add_special_tokens=False)):
        assert not matcher.advance(token_id) and matcher.num_allowed([token_id, 65]) == 0
    assert same(matcher.mask(), before)
    drafts = tokenizer.encode('da","age":x', add_special_tokens=False)
    assert matcher.num_allowed(drafts) == len(drafts) - 1
    assert same(matcher.mask(), before)


def test_matchers_of_one_grammar_do_not_touch(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    """S38: many requests share a grammar; each has its own place in it."""
    compiled = backend.compile(GRAMMARS["choice"])
    first, second = compiled.new_matcher(), compiled.new_matcher()
    start = second.mask()
    assert take_text(first, tokenizer, "yes") and first.is_accepting
    assert same(second.mask(), start) and not second.is_accepting


def test_padding_of_the_output_head_is_never_allowed(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    mask = backend.compile(Grammar(kind=GrammarKind.REGEX, source="(?s:.)*")).new_matcher().mask()
    assert len(mask) == (tokenizer.vocab_size + 13 + 31) // 32
    assert max(allowed_ids(mask)) < tokenizer.vocab_size
    with pytest.raises(ValueError):
        mask[0] = 0


def test_one_of_needs_to_be_told_apart(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    kinds = {"oneOf": [object_of(kind={"const": "a"}, x={"type": "integer"}), object_of(kind={"const": "b"})]}
    assert accepts(backend.compile(json_schema(kinds)).new_matcher(), tokenizer, '{"kind": "b"}')


def test_foreign_formats_and_annotations_are_no_constraints(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **object_of(format={"type": "string", "format": "int32", "title": "t", "default": 1, "examples": [2]}),
    }
    assert accepts(backend.compile(json_schema(schema)).new_matcher(), tokenizer, '{"format": "x"}')
    date = backend.compile(json_schema({"type": "string", "format": "date"}))
    assert accepts(date.new_matcher(), tokenizer, '"2026-11-30"')
    assert not take_text(date.new_matcher(), tokenizer, '"20x')


@pytest.mark.parametrize(
    ("grammar", "path"),
    [
        (json_schema(object_of(a={"type": "string", "pattern": "(a|b"})), "response_format.properties.a.pattern"),
        (json_schema({"anyOf": [{"not": {}}, {}]}), "response_format.anyOf[0].not"),
        (json_schema(object_of(a={"type": "array", "uniqueItems": True})), "response_format.properties.a.uniqueItems"),
        (json_schema({"allOf": [{"type": "string"}, {"type": "integer"}]}), "response_format"),
        (json_schema({"const": 1, "type": "string"}, param="guided_json"), "guided_json"),
        (json_schema({"oneOf": [{"type": "object"}, {"type": "object", "properties": {"a": {}}}]}), "response_format"),
        (json_schema({"$ref": "#"}), "response_format"),
        (Grammar(kind=GrammarKind.JSON_SCHEMA, source="{no json"), "response_format"),
        (Grammar(kind=GrammarKind.JSON_SCHEMA, source="[" * 200_000), "response_format"),
        (Grammar(kind=GrammarKind.JSON_SCHEMA), "response_format"),
        (Grammar(kind=GrammarKind.REGEX, source="(a|b", param="guided_regex"), "guided_regex"),
        (Grammar(kind=GrammarKind.REGEX, source="a(?=b)"), "response_format"),
        (Grammar(kind=GrammarKind.REGEX, source="a" * (MAX_SOURCE_CHARS + 1)), "response_format"),
        (Grammar(kind=GrammarKind.EBNF, source="root ::= (((" + '"a"'), "response_format"),
        (Grammar(kind=GrammarKind.EBNF, source="start: missing"), "response_format"),
        (Grammar(kind=GrammarKind.CHOICE, source="[]"), "response_format"),
        (Grammar(kind=GrammarKind.CHOICE, source="[1]"), "response_format"),
        (Grammar(kind=GrammarKind.REGEX, source="[^\\s\\S]"), "response_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.source)[:40],
)  # fmt: skip
def test_grammars_that_cannot_be_enforced_are_refused(backend: GrammarBackend, grammar: Grammar, path: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        backend.compile(grammar)
    assert caught.value.param == path
    assert path in caught.value.message and len(caught.value.message) < 600


def test_a_step_that_costs_too_much_is_told_apart(backend: GrammarBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    matcher: Any = backend.compile(GRAMMARS["regex"]).new_matcher()
    matcher._matcher.consume_token(ord("z"))  # an error inside the library
    with pytest.raises(GrammarLimitError):
        matcher.mask()


@pytest.mark.requires_deepseek_tokenizer
def test_control_tokens_are_no_text(v4_backend: GrammarBackend, v4_tokenizer: Tokenizer) -> None:
    """With the real vocabulary: markup tokens do not appear inside strings, and answers are written in real tokens."""
    compiled = v4_backend.compile(json_schema(object_of(a={"type": "string"})))
    matcher = compiled.new_matcher()
    assert take_text(matcher, v4_tokenizer, '{"a": "x')
    allowed = set(allowed_ids(matcher.mask()))
    assert not allowed & v4_tokenizer.added_token_ids and 1 not in allowed
    assert take_text(matcher, v4_tokenizer, '😀 y"}') and matcher.is_finished
    assert allowed_ids(matcher.mask()) == [1]
    assert matcher.advance(1) and matcher.is_finished
