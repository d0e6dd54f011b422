"""Masks of a step's sampling rows, built in a thread of their own while the model runs. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tokenmill.core.errors import CapabilityError
from tokenmill.core.step import SequencePlan, SequenceResult
from tokenmill.engine.structured.base import GrammarLimitError, PackedMask
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar

#: What one row gets: a mask, None for "all tokens", or the reason why this grammar cannot go on.
RowMask = PackedMask | GrammarLimitError | None


class MaskBuilder:
    """
    cpu_s      CPU seconds spent on masks so far
    num_masks  built so far
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.num_masks = 0
        self._thread: ThreadPoolExecutor | None = None

    def start(self, grammars: Sequence[SequenceGrammar | None]) -> PendingMasks:
        """Begin. Grammars must not be moved before the masks are taken."""
        if not any(grammar is not None and grammar.is_active for grammar in grammars):
            return PendingMasks(len(grammars), None)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        return PendingMasks(len(grammars), self._thread.submit(self._build, tuple(grammars)))

    def _build(self, grammars: Sequence[SequenceGrammar | None]) -> list[RowMask]:
        start_s = time.thread_time()
        masks = [None if grammar is None else _mask(grammar) for grammar in grammars]
        self.num_masks += sum(mask is not None for mask in masks)
        self.cpu_s += time.thread_time() - start_s
        return masks


class PendingMasks:
    def __init__(self, num_rows: int, future: Future[list[RowMask]] | None) -> None:
        self._num_rows = num_rows
        self._future = future

    def take(self) -> list[RowMask]:
        """One per row; waits for those that are not done."""
        return [None] * self._num_rows if self._future is None else self._future.result()


def too_costly(planned: SequencePlan, error: GrammarLimitError) -> SequenceResult:
    """The end of a sequence whose grammar cannot be followed any further; the others go on."""
    return SequenceResult(
        planned.request_id,
        (),
        planned.num_scheduled_tokens,
        error=f"the grammar became too costly to follow ({error}): make it simpler",
        error_code=CapabilityError.code,
    )


def _mask(grammar: SequenceGrammar) -> RowMask:
    try:
        return grammar.mask()
    except GrammarLimitError as error:
        return error
