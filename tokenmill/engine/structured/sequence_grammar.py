"""A grammar along one sequence: off until thinking ends, moved by commit, undone by roll back. Torch-free, pure."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.engine.structured.base import CompiledGrammar, PackedMask


class SequenceGrammar:
    """
    start_after   ids behind whose first appearance in the output the grammar holds; (): from the first token on

    Preemption and restart change nothing: output tokens stay. On another worker, `commit` of the output so far leads
    to the same state.
    """

    def __init__(self, compiled: CompiledGrammar, start_after: Sequence[int] = ()) -> None:
        self._matcher = compiled.new_matcher()
        self._start_after = list(start_after)
        self._token_ids: list[int] = []
        self._start: int | None = None if self._start_after else 0

    @property
    def is_active(self) -> bool:
        """The next token is constrained."""
        return self._start is not None

    @property
    def is_finished(self) -> bool:
        """Nothing but an end token may follow."""
        return self.is_active and self._matcher.is_finished

    @property
    def is_accepting(self) -> bool:
        """The text under the grammar is whole."""
        return self.is_active and self._matcher.is_accepting

    def mask(self) -> PackedMask | None:
        """Tokens that may come next; None: all."""
        return self._matcher.mask() if self.is_active else None

    def commit(self, token_ids: Sequence[int]) -> None:
        """These tokens are part of the sequence now. Each was drawn under the mask, or counted by num_allowed."""
        for token_id in token_ids:
            is_taken = self._take(token_id)
            assert is_taken, f"token {token_id} at output position {len(self._token_ids)} breaks the grammar"

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many drafts, from the first, keep to the grammar. Changes nothing."""
        num_taken = 0
        while num_taken < len(token_ids) and self._take(token_ids[num_taken]):
            num_taken += 1
        self.rollback(num_taken)
        return num_taken

    def masks_along(self, draft_token_ids: Sequence[int]) -> list[PackedMask | None]:
        """One mask per row of a verifying step: before the first draft, then behind each legal one.

        Changes nothing; a sequence for which it raises GrammarLimitError has to end.
        """
        masks = [self.mask()]
        num_taken = 0
        for token_id in draft_token_ids:
            if not self._take(token_id):
                break
            num_taken += 1
            masks.append(self.mask())
        self.rollback(num_taken)
        return masks

    def rollback(self, num_tokens: int) -> None:
        """The last tokens never happened."""
        assert 0 <= num_tokens <= len(self._token_ids), f"{num_tokens} of {len(self._token_ids)} tokens"
        length = len(self._token_ids) - num_tokens
        if self._start is not None:
            self._matcher.rollback(min(num_tokens, len(self._token_ids) - self._start))
            if self._start_after and length < self._start:
                self._start = None
        del self._token_ids[length:]

    def _take(self, token_id: int) -> bool:
        if self._start is not None:
            if not self._matcher.advance(token_id):
                return False
            self._token_ids.append(token_id)
            return True
        self._token_ids.append(token_id)
        if self._token_ids[-len(self._start_after) :] == self._start_after:
            self._start = len(self._token_ids)
        return True
