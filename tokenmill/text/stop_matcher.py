"""Finds stop strings in text that comes in pieces, without ever letting part of one out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopStep:
    """`text` may be shown now; `stop` is the stop string that was met (nothing comes after it)."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Cuts a text at its first stop string, however the text is cut into pieces.

    The match that is complete first wins; of several complete with the same character the longest, so that no part
    of a stop string is shown. Only the longest end of the text that can still become a stop string is held back.

    include_stop  the stop string itself is shown
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = tuple(dict.fromkeys(stops))
        self._fallbacks = tuple(_fallback_lengths(stop) for stop in self._stops)
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._include_stop = include_stop
        self._matched = [0] * len(self._stops)  # per stop string: how much of it the text ends with
        self._held = ""
        self.is_stopped = False

    def push(self, text: str, *, can_stop: bool = True) -> StopStep:
        """Take the next piece. `can_stop` False: a stop string completed in this piece is ordinary text."""
        assert not self.is_stopped, "the text has ended"
        if not self._held and self._first_chars.isdisjoint(text):
            return StopStep(text)
        start = len(self._held)
        self._held += text
        for end in range(start, len(self._held)):
            stop = self._advance(self._held[end])
            if stop is not None and can_stop:
                self.is_stopped = True
                return StopStep(self._release(end + 1 - (0 if self._include_stop else len(stop))), stop)
        return StopStep(self._release(len(self._held) - max(self._matched)))

    def flush(self) -> str:
        """The text ends without a stop string: what was held back."""
        return "" if self.is_stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _advance(self, char: str) -> str | None:
        """One character further in every stop string (Knuth, Morris, Pratt 1977); the longest completed one."""
        found: str | None = None
        for i, stop in enumerate(self._stops):
            fallback, length = self._fallbacks[i], self._matched[i]
            while length and stop[length] != char:
                length = fallback[length - 1]
            length += stop[length] == char
            if length == len(stop):
                found = stop if found is None or len(stop) > len(found) else found
                length = fallback[length - 1]
            self._matched[i] = length
        return found


def _fallback_lengths(stop: str) -> list[int]:
    """For each prefix of `stop`: length of its longest proper end that is also its start."""
    lengths = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = lengths[length - 1]
        length += stop[i] == stop[length]
        lengths[i] = length
    return lengths
