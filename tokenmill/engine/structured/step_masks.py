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
#: What one sequence gets: a mask for its row, then one behind each draft; rows behind an illegal draft need none.
SequenceMasks = list[RowMask]


class MaskBuilder:
    """
    cpu_s      CPU seconds spent on masks so far
    num_masks  built so far
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.num_masks = 0
        self._thread: ThreadPoolExecutor | None = None

    def start(
        self, grammars: Sequence[SequenceGrammar | None], drafts: Sequence[Sequence[int]] | None = None
    ) -> PendingMasks:
        """Begin. Grammars must not be moved before the masks are taken.

        drafts  per grammar the tokens whose fate the step decides; None: there are none
        """
        drafts = drafts or [()] * len(grammars)
        if not any(_may_hold(grammar, ids) for grammar, ids in zip(grammars, drafts, strict=True)):
            return PendingMasks(len(grammars), None)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        return PendingMasks(len(grammars), self._thread.submit(self._build, tuple(grammars), tuple(drafts)))

    def _build(
        self, grammars: Sequence[SequenceGrammar | None], drafts: Sequence[Sequence[int]]
    ) -> list[SequenceMasks]:
        start_s = time.thread_time()
        masks: list[SequenceMasks] = [
            [] if grammar is None else _masks(grammar, ids) for grammar, ids in zip(grammars, drafts, strict=True)
        ]
        self.num_masks += sum(mask is not None for row in masks for mask in row)
        self.cpu_s += time.thread_time() - start_s
        return masks


class PendingMasks:
    def __init__(self, num_sequences: int, future: Future[list[SequenceMasks]] | None) -> None:
        self._num_sequences = num_sequences
        self._future = future

    def take(self) -> list[SequenceMasks]:
        """One list per sequence, shorter than its rows where the rest need none; waits for those not done."""
        return [[] for _ in range(self._num_sequences)] if self._future is None else self._future.result()


def too_costly(planned: SequencePlan, error: GrammarLimitError) -> SequenceResult:
    """The end of a sequence whose grammar cannot be followed any further; the others go on."""
    return SequenceResult(
        planned.request_id,
        (),
        planned.num_scheduled_tokens,
        error=f"the grammar became too costly to follow ({error}): make it simpler",
        error_code=CapabilityError.code,
    )


def _may_hold(grammar: SequenceGrammar | None, drafts: Sequence[int]) -> bool:
    """A grammar that is not active yet may become so behind one of the drafts."""
    return grammar is not None and (grammar.is_active or bool(drafts))


def _masks(grammar: SequenceGrammar, drafts: Sequence[int]) -> SequenceMasks:
    try:
        return list(grammar.masks_along(drafts))
    except GrammarLimitError as error:
        return [error]
