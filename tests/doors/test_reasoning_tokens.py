"""Tokens of reasoning in usage: the ids between the tags, tags included, however they were cut."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.api.fakes import BYTE_TOKENIZER, FakeDispatcher, card, ids
from tests.api.live import LiveServer, chat_body
from tests.doors.events import named_events
from tests.doors.outputs import calm
from tokenmill.api.reasoning_tokens import ReasoningCounter

OPEN, CLOSE = 1, 2


@pytest.mark.parametrize(
    ("token_ids", "starts_inside", "num_tokens"),
    [
        ([7, 7, CLOSE, 8, 8], True, 3),
        ([7, 7], True, 2),
        ([OPEN, 7, CLOSE, 8, 0], False, 3),
        ([9, OPEN, 7, CLOSE, OPEN, 8], False, 3),
        ([8, 8, CLOSE, 0], False, 0),
        ([CLOSE, 8], True, 1),
        ([], True, 0),
    ],
)
def test_what_counts(token_ids: list[int], starts_inside: bool, num_tokens: int) -> None:
    counter = ReasoningCounter(OPEN, CLOSE, starts_inside=starts_inside)
    counter.take(token_ids)
    assert counter.num_tokens == num_tokens


@calm
@given(st.lists(st.integers(0, 4)), st.booleans(), st.data())
def test_cuts_do_not_matter(token_ids: list[int], starts_inside: bool, data: st.DataObject) -> None:
    """S49."""
    whole, cut = (ReasoningCounter(OPEN, CLOSE, starts_inside=starts_inside) for _ in range(2))
    whole.take(token_ids)
    while token_ids:
        size = data.draw(st.integers(1, len(token_ids)))
        cut.take(token_ids[:size])
        token_ids = token_ids[size:]
    assert cut.num_tokens == whole.num_tokens


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The byte tokenizer with two tokens more, its tags."""
    path = tmp_path_factory.mktemp("tokenizer")
    shutil.copytree(BYTE_TOKENIZER, path, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save(str(path / "tokenizer.json"))
    opening, closing = (tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    dispatcher = FakeDispatcher(card(reasoning_parser="think", tokenizer_path=str(path), vocab_size=closing + 1))
    dispatcher.script = lambda request: [opening, *ids("hm hm"), closing, *ids("ok"), 0]
    with LiveServer(dispatcher) as server:
        yield server


@pytest.mark.parametrize("cut", [[1], [3, 1], [100]])
def test_every_api_tells_them(thinker: LiveServer, cut: list[int]) -> None:
    thinker.dispatcher.cut = lambda request: cycle(cut)
    assert thinker.chat().json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}
    events = thinker.stream("/v1/chat/completions", chat_body(stream_options={"include_usage": True}))
    assert events[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}
    asked = {"model": "bytes", "input": "hi"}
    assert thinker.post("/v1/responses", asked).json()["usage"]["output_tokens_details"] == {"reasoning_tokens": 7}
    last = named_events(thinker, "/v1/responses", asked)[-1]["response"]
    assert last["usage"]["output_tokens_details"] == {"reasoning_tokens": 7}
    message = thinker.post("/v1/messages", chat_body(max_tokens=50)).json()
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 7}
