"""Where the newest tokens of a text stood before, over the text itself and documents beside it. Pure, torch-free."""

from __future__ import annotations

from collections.abc import Sequence

#: Places compared for one look-up, newest first.
_MOST_PLACES = 16
#: Stands between documents and in no vocabulary, so that no match runs from one text into the next.
_BORDER = -1


class SuffixIndex:
    """
    shortest  tokens that must agree for a place to count
    longest   agreement beyond it is not compared any further

    One dictionary entry per token: the last place of each run of `shortest` tokens, and from each place the one
    before it with the same run.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        assert 1 <= shortest <= longest
        self._shortest, self._longest = shortest, longest
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[int | None] = []
        self._first_own = 0

    def add_document(self, token_ids: Sequence[int]) -> None:
        """A text beside the sequence's own, before any of that is followed."""
        if token_ids:
            assert self._first_own == len(self._tokens), "documents come first"
            self._extend(token_ids)
            self._extend((_BORDER,))
            self._first_own = len(self._tokens)

    def follow(self, token_ids: Sequence[int]) -> None:
        """The sequence's own text so far; it only ever grows."""
        self._extend(token_ids[len(self._tokens) - self._first_own :])

    def _extend(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._tokens.append(token_id)
            run = tuple(self._tokens[-self._shortest :])
            end = len(self._tokens)
            if len(run) == self._shortest and _BORDER not in run:
                self._before.append(self._last.get(run))
                self._last[run] = end
            else:
                self._before.append(None)

    def continuation(self, num_tokens: int) -> list[int]:
        """What followed the place that agrees with the newest tokens the longest; the newest place on ties."""
        best, best_length = None, 0
        place = self._before[-1] if self._tokens else None
        for _ in range(_MOST_PLACES):
            if place is None or best_length >= self._longest:
                break
            length = self._agreement(place)
            if length > best_length:
                best, best_length = place, length
            place = self._before[place - 1]
        return [] if best is None else self._read(best, num_tokens)

    def _agreement(self, place: int) -> int:
        """Tokens before `place` equal to the newest ones, at most `longest`."""
        tokens, end, length = self._tokens, len(self._tokens), self._shortest
        most = min(self._longest, place, end - self._first_own)
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length

    def _read(self, place: int, num_tokens: int) -> list[int]:
        """A place near the end repeats what lies between it and the end: a text with a period goes on with it."""
        tokens, period = self._tokens, len(self._tokens) - place
        out: list[int] = []
        for i in range(num_tokens):
            token = tokens[place + i] if i < period else out[i - period]
            if token == _BORDER:
                break
            out.append(token)
        return out
