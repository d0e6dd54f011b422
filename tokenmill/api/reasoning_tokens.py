"""How many ids of an output are reasoning, tags included. Counted id by id: how they were cut cannot matter. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class ReasoningCounter:
    """
    open_id, close_id  ids of the tags around reasoning
    starts_inside      the prompt ends with the opening tag
    """

    def __init__(self, open_id: int | None, close_id: int, *, starts_inside: bool) -> None:
        self.num_tokens = 0
        self._open_id = open_id
        self._close_id = close_id
        self._is_inside = starts_inside
        self._is_over = False

    def take(self, token_ids: Iterable[int]) -> None:
        """The next ids of the output."""
        for token_id in token_ids:
            if self._is_over:
                return
            self._is_inside = self._is_inside or token_id == self._open_id
            self.num_tokens += self._is_inside
            self._is_over = self._is_inside and token_id == self._close_id
