"""One request's way from the dispatcher to its consumer: a buffer that merges while nobody reads, and has a limit."""

from __future__ import annotations

import asyncio

from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import TokenDelta
from tokenmill.operations.deltas import delta_size, merge_deltas


class TokenStream:
    """Single consumer, single event loop. However slowly it is read, it holds one merged delta."""

    def __init__(self, max_unread_tokens: int) -> None:
        self._max_unread_tokens = max_unread_tokens
        self._unread: TokenDelta | None = None
        self._unread_size = 0
        self._error: TokenmillError | None = None
        self._is_over = False
        self._wake = asyncio.Event()

    @property
    def is_over_limit(self) -> bool:
        return self._unread_size > self._max_unread_tokens

    def put(self, delta: TokenDelta) -> None:
        assert not self._is_over, f"{delta.request_id}: a delta after the end"
        self._unread = merge_deltas(self._unread, delta)
        self._unread_size += delta_size(delta)
        self._is_over = delta.finish_reason is not None
        self._wake.set()

    def fail(self, error: TokenmillError) -> None:
        """End with `error`, after what came before it."""
        assert not self._is_over, f"a second end: {error}"
        self._error, self._is_over = error, True
        self._wake.set()

    async def get(self) -> TokenDelta:
        """Everything since the last call as one delta; raises the error once the tokens before it are out."""
        while self._unread is None:
            if self._error is not None:
                raise self._error
            assert not self._is_over, "read past the end"
            self._wake.clear()
            await self._wake.wait()
        delta, self._unread, self._unread_size = self._unread, None, 0
        return delta
