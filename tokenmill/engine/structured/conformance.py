"""What every grammar backend must do, as one function that a separate package runs on its own backend in its tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from tokenmill.core.errors import BadRequestError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.engine.structured.base import GrammarBackend, Matcher, PackedMask

_MAX_DEPTH = 8


def check_grammar_backend(
    backend: GrammarBackend,
    grammars: Sequence[Grammar],
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    num_steps: int = 40,
) -> None:
    """Raise AssertionError, naming the rule, unless the backend obeys all of them on these grammars."""
    for number, grammar in enumerate(grammars):
        rng = random.Random(number)
        compiled = backend.compile(grammar)
        matcher, fresh = compiled.new_matcher(), compiled.new_matcher()
        start = fresh.mask().copy()
        for _ in range(num_steps):
            _check_mask(matcher, rng, vocab_size, eos_token_ids)
            _check_rollback(matcher, rng)
            if matcher.is_finished:
                break
            _take(matcher, rng, 1, avoid=frozenset(eos_token_ids))
        assert np.array_equal(fresh.mask(), start), "independence: a matcher was moved by another one's tokens"
    _check_refusal(backend)


def _allowed(mask: PackedMask) -> list[int]:
    return [int(t) for t in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def _check_mask(matcher: Matcher, rng: random.Random, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
    mask = matcher.mask()
    allowed = set(_allowed(mask))
    assert mask.dtype == np.uint32 and len(mask) == (vocab_size + 31) // 32, f"mask: {len(mask)} words of {mask.dtype}"
    assert allowed and max(allowed) < vocab_size, "mask: nothing is allowed, or an id beyond the vocabulary"
    for token_id in (*rng.choices(sorted(allowed), k=8), *(rng.randrange(vocab_size) for _ in range(8))):
        assert (matcher.num_allowed([token_id]) == 1) == (token_id in allowed), f"mask: token {token_id} differs"
    ends = allowed & set(eos_token_ids)
    assert bool(ends) == matcher.is_accepting, "mask: end tokens belong where the text is whole"
    assert matcher.is_finished == (allowed == ends), "mask: finished means that only end tokens may follow"


def _take(matcher: Matcher, rng: random.Random, num_tokens: int, avoid: frozenset[int] = frozenset()) -> None:
    for _ in range(num_tokens):
        token_id = rng.choice([t for t in _allowed(matcher.mask()) if t not in avoid] or _allowed(matcher.mask()))
        assert matcher.advance(token_id), f"advance: token {token_id} is in the mask and not taken"


def _check_rollback(matcher: Matcher, rng: random.Random) -> None:
    before = matcher.mask().copy(), matcher.is_accepting, matcher.is_finished
    depth = rng.randint(1, _MAX_DEPTH)
    _take(matcher, rng, depth)
    matcher.rollback(depth)
    assert np.array_equal(matcher.mask(), before[0]), f"rollback: the mask after {depth} tokens and back differs"
    assert (matcher.is_accepting, matcher.is_finished) == before[1:], f"rollback: state after {depth} tokens differs"
    refused = sorted(set(range(len(before[0]) * 32)) - set(_allowed(before[0])))
    if refused:
        assert not matcher.advance(rng.choice(refused)), "advance: a token outside the mask was taken"
        assert np.array_equal(matcher.mask(), before[0]), "advance: a refused token moved the matcher"


def _check_refusal(backend: GrammarBackend) -> None:
    for grammar in (
        Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"type": "nothing"}', param="here"),
        Grammar(kind=GrammarKind.REGEX, source="(a|b", param="here"),
    ):
        try:
            backend.compile(grammar)
        except BadRequestError as error:
            assert error.param is not None and error.param.startswith("here"), (
                f"refusal: {error.param!r} is not the place"
            )
        else:
            raise AssertionError(f"refusal: {grammar.source} was compiled")
