"""Responses that may be asked for again or continued: in memory, bounded in bytes, each forgotten when unused too long.

Pure: the time is passed in. A turn's items are kept once, however many later responses contain them. Not responsible
for: other processes (a restart forgets everything).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.api.errors import encode_json
from tokenmill.api.responses.items import Item
from tokenmill.core.errors import BadRequestError


class NoSuchPreviousResponseError(BadRequestError):
    code = "previous_response_not_found"


@dataclass(slots=True)
class _Turn:
    """What one request added to its conversation. `num_users`: stored responses that contain it."""

    items: tuple[Item, ...]
    num_bytes: int
    num_users: int = 0


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """
    body       the response object
    turns      the conversation with this response at its end
    used_s     when it was stored or last asked for
    """

    body: dict[str, Any]
    turns: tuple[_Turn, ...]
    num_bytes: int
    used_s: float

    def items(self) -> list[Item]:
        return [item for turn in self.turns for item in turn.items]


class ResponseStore:
    """
    max_bytes  of JSON, over all responses; the longest unused are forgotten first
    ttl_s      a response unused for so long is forgotten
    """

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._by_id: OrderedDict[str, StoredResponse] = OrderedDict()  # longest unused first
        self._response_of_item: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def put(
        self, body: dict[str, Any], previous: StoredResponse | None, new_items: Sequence[Item], now_s: float
    ) -> None:
        """Keep a finished response; `new_items` are its input, its output is in `body`."""
        self._expire(now_s)
        items = (*new_items, *body["output"])
        turns = (*(previous.turns if previous else ()), _Turn(items, len(encode_json(items))))
        self._add(body["id"], StoredResponse(body, turns, len(encode_json(body)), now_s))
        while self.num_bytes > self._max_bytes and self._by_id:
            self.delete(next(iter(self._by_id)))

    def get(self, response_id: str, now_s: float) -> StoredResponse | None:
        self._expire(now_s)
        stored = self._by_id.get(response_id)
        if stored is None:
            return None
        used = StoredResponse(stored.body, stored.turns, stored.num_bytes, now_s)
        self._by_id[response_id] = used
        self._by_id.move_to_end(response_id)
        return used

    def previous(self, response_id: str, now_s: float) -> StoredResponse:
        """The response to go on from; a typed error when it is not (any more) here."""
        stored = self.get(response_id, now_s)
        if stored is None:
            raise NoSuchPreviousResponseError(
                f"previous_response_id={response_id[:100]!r} is not here: it was sent with store=false, deleted, "
                "forgotten, or made by another server; send the whole conversation as input",
                param="previous_response_id",
            )
        return stored

    def resolve(self, items: Sequence[Item]) -> list[Item]:
        """`items` with every item_reference replaced by the item it names."""
        return [
            self._referred(item, i) if item.get("type") == "item_reference" else item for i, item in enumerate(items)
        ]

    def _referred(self, reference: Item, index: int) -> Item:
        item_id = reference.get("id")
        stored = self._by_id.get(self._response_of_item.get(item_id, "")) if isinstance(item_id, str) else None
        found = next((item for item in stored.body["output"] if item["id"] == item_id), None) if stored else None
        if found is None:
            raise BadRequestError(
                f"input[{index}] refers to an item that is not here (any more): send the item itself",
                param=f"input[{index}].id",
            )
        return dict(found)

    def delete(self, response_id: str) -> bool:
        stored = self._by_id.pop(response_id, None)
        if stored is None:
            return False
        self.num_bytes -= stored.num_bytes
        for turn in stored.turns:
            turn.num_users -= 1
            self.num_bytes -= 0 if turn.num_users else turn.num_bytes
        for item in stored.body["output"]:
            self._response_of_item.pop(item["id"], None)
        return True

    def _add(self, response_id: str, stored: StoredResponse) -> None:
        self._by_id[response_id] = stored
        self.num_bytes += stored.num_bytes
        for turn in stored.turns:
            self.num_bytes += 0 if turn.num_users else turn.num_bytes
            turn.num_users += 1
        for item in stored.body["output"]:
            self._response_of_item[item["id"]] = response_id

    def _expire(self, now_s: float) -> None:
        while self._by_id:
            response_id, oldest = next(iter(self._by_id.items()))
            if now_s - oldest.used_s < self._ttl_s:
                return
            self.delete(response_id)
