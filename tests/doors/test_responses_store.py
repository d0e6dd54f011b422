"""The store of responses: bounded in bytes, exact in its books, forgetting what was not used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doors.outputs import calm
from tokenmill.api.errors import encode_json
from tokenmill.api.responses.store import NoSuchPreviousResponseError, ResponseStore, StoredResponse
from tokenmill.core.errors import BadRequestError


def body(response_id: str, text: str = "out") -> dict[str, Any]:
    return {"id": response_id, "output": [{"type": "message", "id": f"msg_{response_id}", "role": "assistant",
                                           "content": [{"type": "output_text", "text": text}]}]}  # fmt: skip


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_conversation_grows() -> None:
    store = ResponseStore(10**6, 60)
    store.put(body("a"), None, [said("1")], 0)
    store.put(body("b"), store.previous("a", 1), [said("2")], 1)
    items = store.previous("b", 2).items()
    assert [item["role"] for item in items] == ["user", "assistant"] * 2
    assert [item.get("id") for item in items] == [None, "msg_a", None, "msg_b"]


def test_a_conversation_outlives_its_beginning() -> None:
    store = ResponseStore(10**6, 60)
    store.put(body("a"), None, [said("1")], 0)
    store.put(body("b"), store.previous("a", 0), [said("2")], 0)
    assert store.delete("a") and not store.delete("a")
    assert len(store.previous("b", 1).items()) == 4
    store.delete("b")
    assert store.num_bytes == 0 and len(store) == 0


def test_what_is_not_used_is_forgotten() -> None:
    store = ResponseStore(10**6, 60)
    store.put(body("a"), None, [], 0)
    store.put(body("b"), None, [], 0)
    assert store.get("a", 50) is not None
    assert store.get("b", 60) is None and store.get("a", 60) is not None
    with pytest.raises(NoSuchPreviousResponseError) as caught:
        store.previous("b", 61)
    assert caught.value.param == "previous_response_id" and caught.value.status == 400


def test_the_longest_unused_make_room() -> None:
    store = ResponseStore(2000, 60)
    for i in range(10):
        store.put(body(str(i), "x" * 200), None, [], i)
        store.get("0", i)
    assert store.get("0", 10) is not None and store.get("9", 10) is not None and store.get("1", 10) is None
    assert 0 < store.num_bytes <= 2000
    store.put(body("huge", "x" * 3000), None, [], 11)
    assert store.get("huge", 11) is None and store.num_bytes <= 2000


def test_references() -> None:
    store = ResponseStore(10**6, 60)
    store.put(body("a"), None, [], 0)
    reference = {"type": "item_reference", "id": "msg_a"}
    assert store.resolve([said("x"), reference])[1]["content"][0]["text"] == "out"
    store.delete("a")
    for wrong in (reference, {"type": "item_reference"}, {"type": "item_reference", "id": 5}):
        with pytest.raises(BadRequestError) as caught:
            store.resolve([wrong])
        assert caught.value.param == "input[0].id"


_kinds = st.sampled_from(["put", "get", "delete", "wait"])


@calm
@given(st.lists(st.tuples(_kinds, st.integers(0, 9), st.integers(0, 300)), max_size=40))
def test_books_are_exact(steps: list[tuple[str, int, int]]) -> None:
    """Bytes counted are those of the responses there, each turn once; the limit holds; time forgets."""
    store, now_s, live = ResponseStore(3000, 100), 0.0, 0
    for number, (kind, which, size) in enumerate(steps):
        if kind == "put":
            previous = store.get(str(which), now_s)
            store.put(body(str(number), "x" * size), previous, [said("y" * size)], now_s)
        elif kind == "get":
            store.get(str(which), now_s)
        elif kind == "delete":
            store.delete(str(which))
        else:
            now_s += size
        assert store.num_bytes == _count(store) <= 3000
        live = max(live, len(store))
    store.get("none", now_s + 1000)
    assert store.num_bytes == 0 and len(store) == 0


def _count(store: ResponseStore) -> int:
    kept: list[StoredResponse] = list(store._by_id.values())
    turns = {id(turn): turn for one in kept for turn in one.turns}
    return sum(len(encode_json(one.body)) for one in kept) + sum(len(encode_json(t.items)) for t in turns.values())
