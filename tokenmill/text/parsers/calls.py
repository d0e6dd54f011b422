"""Calls on their way out: each is held until it is whole, or long enough that holding it longer would stall a stream.

A held call that turns out malformed becomes content, verbatim and once. Not responsible for any format.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tokenmill.text.parsers.events import ContentDelta, Event, ToolCallArgumentsDelta, ToolCallEnd, ToolCallStart

#: Characters of markup after which a call goes out although its end is not here yet: its arguments then stream.
HELD_CHARS = 512


def new_call_id() -> str:
    """An id nobody can guess, so that it may name what a session said (encodings/replay.py)."""
    return f"call_{secrets.token_hex(12)}"


class CallSink:
    """The one call being read. `read` is told of every character of markup, so that nothing is lost on failure."""

    def __init__(self, emit: Callable[[Event], None], make_id: Callable[[], str]) -> None:
        self._emit = emit
        self._make_id = make_id
        self.num_calls = 0
        self._reset()

    def _reset(self) -> None:
        self._raw: list[str] = []
        self._num_raw_chars = 0
        self._name: str | None = None
        self._arguments: list[str] = []
        self._is_released = False

    @property
    def has_name(self) -> bool:
        return self._name is not None

    @property
    def raw(self) -> str:
        """Markup of this call so far (empty once it is on its way out)."""
        return "".join(self._raw)

    def read(self, raw: str) -> None:
        """`raw` belongs to this call, whatever becomes of it."""
        self._num_raw_chars += len(raw)
        if not self._is_released:
            self._raw.append(raw)
            self._release_if_long()

    def start(self, name: str) -> None:
        assert self._name is None, f"call {self._name!r} is still open"
        self._name = name
        self._release_if_long()

    def arguments(self, text: str) -> None:
        if self._is_released:
            self._emit(ToolCallArgumentsDelta(self.num_calls - 1, text))
        else:
            self._arguments.append(text)

    def end(self) -> None:
        """The call is whole."""
        self._release()
        self._emit(ToolCallEnd(self.num_calls - 1))
        self._reset()

    def fail(self) -> bool:
        """The call is malformed. True: its markup went out as content. False: it is out already, and stays unended."""
        is_held = not self._is_released
        if is_held:
            self._emit(ContentDelta(self.raw))
            self._reset()
        return is_held

    def interrupt(self) -> None:
        """The output ends inside the call: what is known of it goes out, without an end. Without a name: nothing."""
        if self._name is not None:
            self._release()
        self._reset()

    def _release_if_long(self) -> None:
        if self._name is not None and self._num_raw_chars > HELD_CHARS:
            self._release()

    def _release(self) -> None:
        if self._is_released:
            return
        assert self._name is not None, "a call without a name cannot go out"
        self._is_released = True
        self._raw.clear()
        self._emit(ToolCallStart(self.num_calls, self._make_id(), self._name))
        self._emit(ToolCallArgumentsDelta(self.num_calls, "".join(self._arguments)))
        self._arguments.clear()
        self.num_calls += 1
