"""A grammar along a sequence: it begins behind thinking, follows commits, and forgets what is rolled back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.structured.helpers import GRAMMARS, allowed_ids, same
from tokenmill.engine.structured.base import GrammarBackend
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_llguidance
_QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def compiled(backend: GrammarBackend) -> Any:
    return backend.compile(GRAMMARS["choice"])


def test_it_holds_from_the_first_token_on(compiled: Any, tokenizer: Tokenizer) -> None:
    grammar = SequenceGrammar(compiled)
    assert grammar.is_active and not grammar.is_accepting
    grammar.commit(_ids(tokenizer, "yes"))
    assert grammar.is_accepting and not grammar.is_finished
    grammar.commit(_ids(tokenizer, "terday"))
    assert grammar.is_finished
    with pytest.raises(AssertionError, match="breaks the grammar"):
        grammar.commit(_ids(tokenizer, "x"))


def test_it_starts_behind_the_end_of_thinking(compiled: Any, tokenizer: Tokenizer) -> None:
    end = _ids(tokenizer, "</t>")
    grammar = SequenceGrammar(compiled, end)
    grammar.commit(_ids(tokenizer, "anything </t"))
    assert not grammar.is_active and grammar.mask() is None and not grammar.is_finished and not grammar.is_accepting
    grammar.commit(_ids(tokenizer, ">"))
    assert grammar.is_active and grammar.mask() is not None
    assert grammar.num_allowed(_ids(tokenizer, "yesx")) == 3
    grammar.rollback(1)
    assert not grammar.is_active and grammar.mask() is None
    grammar.commit(_ids(tokenizer, ">yes"))
    assert grammar.is_accepting
    grammar.rollback(6)
    assert not grammar.is_active
    grammar.commit(_ids(tokenizer, "</t>n"))
    assert allowed_ids(grammar.mask()) == _ids(tokenizer, '"')  # type: ignore[arg-type]


def test_drafts_across_the_start_are_cut_at_the_first_illegal_one(compiled: Any, tokenizer: Tokenizer) -> None:
    """S36: drafts are held to the grammar before they are verified, also those that cross the end of thinking."""
    grammar = SequenceGrammar(compiled, _ids(tokenizer, "|"))
    grammar.commit(_ids(tokenizer, "hm"))
    drafts = _ids(tokenizer, "m|yes|no")
    assert grammar.num_allowed(drafts) == 5
    masks = grammar.masks_along(drafts)
    assert [mask is None for mask in masks] == [True, True, False, False, False, False]
    assert not grammar.is_active
    grammar.commit(drafts[:3])
    assert same(grammar.mask(), masks[3])  # type: ignore[arg-type]


@_QUICK
@given(data=st.data())
def test_rollback_equals_never_having_been_there(backend: GrammarBackend, data: st.DataObject) -> None:
    """S39: any commits and roll backs leave the state of the tokens that remain, also on another worker."""
    compiled = backend.compile(GRAMMARS["person"])
    start_after = data.draw(st.sampled_from([[], [124], [124, 125]]))
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    grammar, kept = SequenceGrammar(compiled, start_after), list[int]()
    for _ in range(12):
        if kept and rng.random() < 0.4:
            num = rng.randint(1, len(kept))
            grammar.rollback(num)
            del kept[-num:]
            continue
        mask = grammar.mask()
        token_id = rng.choice([124, 124, 125, 7] if mask is None else allowed_ids(mask))
        assert grammar.num_allowed([token_id]) == 1
        grammar.commit([token_id])
        kept.append(token_id)
    again = SequenceGrammar(compiled, start_after)
    again.commit(kept)
    assert (again.is_active, again.is_accepting, again.is_finished) == (
        grammar.is_active,
        grammar.is_accepting,
        grammar.is_finished,
    )
    mine, theirs = grammar.mask(), again.mask()
    assert (mine is None and theirs is None) or (mine is not None and theirs is not None and same(mine, theirs))


def test_rollback_beyond_the_start_is_a_bug(compiled: Any) -> None:
    with pytest.raises(AssertionError):
        SequenceGrammar(compiled).rollback(1)
