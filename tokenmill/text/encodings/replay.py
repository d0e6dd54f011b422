"""What the model wrote, as the ids it wrote: so that the next turn's prompt continues the cached one. Pure.

Text written again need not give the same ids (a model may have chosen other tokens, or other JSON for the same
arguments). A part of an answer is found by its text and the ids of its calls, inside one scope. Nothing is found that
the asker did not send, except the reasoning before calls, whose ids nobody can guess. Not responsible for rendering.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

DEFAULT_MAX_TOKENS = 4_000_000


class ReplayStore:
    """Bounded: the parts least recently used are forgotten first. Any thread may use it.

    max_tokens   ids kept in all (four bytes each); a part that is longer on its own is not kept
    """

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._parts: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def put(self, key: bytes, token_ids: Sequence[int]) -> None:
        if len(token_ids) > self._max_tokens:
            return
        with self._lock:
            self._drop(key)
            self._parts[key] = array("I", token_ids)
            self._num_tokens += len(token_ids)
            while self._num_tokens > self._max_tokens:
                self._drop(next(iter(self._parts)))

    def get(self, key: bytes) -> list[int] | None:
        with self._lock:
            part = self._parts.get(key)
            if part is None:
                return None
            self._parts.move_to_end(key)
            return list(part)

    def _drop(self, key: bytes) -> None:
        part = self._parts.pop(key, None)
        if part is not None:
            self._num_tokens -= len(part)


def part_key(kind: str, scope: str, *content: object) -> bytes:
    """Digest of a tagged tuple, so that no content can pass for another's."""
    return hashlib.blake2b(msgspec.msgpack.encode((kind, scope, content)), digest_size=16).digest()
