"""The n-gram proposer by itself: where it looks, and what it never shows to others."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.request import Request
from tokenmill.engine.speculative.base import DraftWish
from tokenmill.engine.speculative.ngram import NgramProposer
from tokenmill.engine.speculative.suffix_index import SuffixIndex


def wish(prompt, output=(), num_drafts=4, name="r", **fields):
    request = Request(request_id=name, model="m", prompt_token_ids=list(prompt), **fields)
    return DraftWish(request, [*prompt, *output], num_drafts, {})


def drafts(proposer, one):
    (proposal,) = proposer.propose([one])
    return list(proposal.token_ids)


def test_what_followed_last_time():
    assert drafts(NgramProposer(), wish([1, 2, 3, 4, 5, 1, 2])) == [3, 4, 5, 1]
    assert drafts(NgramProposer(), wish([1, 2, 3, 4, 5, 6])) == []


def test_the_longest_agreement_wins_over_the_newest_place():
    text = [9, 1, 2, 3, 50, 8, 2, 3, 60, 9, 1, 2, 3]
    assert drafts(NgramProposer(2, 8), wish(text))[0] == 50
    assert drafts(NgramProposer(2, 2), wish(text))[0] == 60


def test_a_period_goes_on():
    assert drafts(NgramProposer(), wish([7, 7, 7, 7], num_drafts=6)) == [7] * 6
    assert drafts(NgramProposer(), wish([1, 2, 1, 2, 1], num_drafts=5)) == [2, 1, 2, 1, 2]


def test_a_prediction_is_followed_from_its_start_and_found_again_after_an_edit():
    predicted = list(range(100, 120))
    proposer, prompt = NgramProposer(), [1, 2, 3]
    fields = {"prediction_token_ids": predicted}
    assert drafts(proposer, wish(prompt, predicted[:1], **fields)) == predicted[1:5]
    edited = [*predicted[:5], 55, 56, *predicted[8:10]]
    assert drafts(NgramProposer(), wish(prompt, edited, **fields)) == predicted[10:14]


def test_earlier_turns_of_a_session_help_and_others_do_not():
    proposer, said = NgramProposer(), [11, 12, 13, 14, 15, 16]
    first = wish([1], said, name="first", session_id="s", tenant="a")
    drafts(proposer, first)
    proposer.forget("first")
    assert drafts(proposer, wish([2, 12, 13], name="next", session_id="s", tenant="a")) == [14, 15, 16]
    assert drafts(proposer, wish([2, 12, 13], name="other", session_id="s", tenant="b")) == []
    assert drafts(proposer, wish([2, 12, 13], name="salted", session_id="s", tenant="a", cache_salt="x")) == []
    assert drafts(proposer, wish([2, 12, 13], name="none")) == []


def test_nothing_is_kept_of_requests_that_ended():
    proposer = NgramProposer()
    for i in range(1000):
        drafts(proposer, wish([i, i + 1, i, i + 1], name=str(i), session_id=f"s{i}"))
        proposer.forget(str(i))
    assert not proposer._texts and len(proposer._sessions) <= 256
    proposer.forget("never seen")


def naive(text, shortest, num_drafts):
    """Longest agreement up to `longest` = no limit; the newest place on ties."""
    best, best_length = None, 0
    for place in range(len(text) - 1, 0, -1):
        length = 0
        while length < place and text[place - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= shortest and length > best_length:
            best, best_length = place, length
    if best is None:
        return []
    out = list(text)
    for i in range(num_drafts):
        out.append(out[best + i])
    return out[len(text) :]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=14), st.integers(1, 3), st.integers(0, 2**16))
def test_equals_a_search_of_the_whole_text(text, shortest, seed):
    """However the text grew; few places, so that the search is not cut short."""
    index, draw, upto = SuffixIndex(shortest, 64), random.Random(seed), 0
    while upto < len(text):
        upto = min(len(text), upto + draw.randint(1, 5))
        index.follow(text[:upto])
    assert index.continuation(5) == naive(text, shortest, 5)
