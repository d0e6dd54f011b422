"""The production scheduler without a Python step per token: decodes whose end is known coast until something changes.

`steps_until_change()` says for how many steps nothing but counting would happen, `advance(k)` is those k steps at once,
and `plan_step`/`update_step` are one step in which only the sequences that do more than count are touched. Queues,
block tables, hits and evictions are those of Scheduler after as many single steps (tests/engine/test_skipping.py).
Not responsible for: how long steps take (skipping_engine.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from tokenmill.core.scheduling import SchedulerLimits
from tokenmill.core.step import BlockTable, SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.kvcache.manager import KVCacheManager, PrefixHit
from tokenmill.engine.scheduler import Scheduler
from tokenmill.engine.sequence import Sequence

#: (sequence, n) -> the next n tokens it will draw.
Draw = Callable[[Sequence, int], list[int]]


@dataclass(slots=True, eq=False)
class Coasting:
    """A decode that is left alone: its tokens and counts are those of step `synced`.

    order   its place in the running order
    due     step after which it must be looked at: a block to reserve, publish or free, or its end
    is_over  it does not coast any more
    """

    sequence: Sequence
    order: int
    synced: int
    due: int = 0
    is_over: bool = False


#: A heap's item: (step, place in the running order, who).
_Entry = tuple[int, int, Coasting]
_NEVER = 2**62


class SkippingScheduler(Scheduler):
    """`draw` tells the tokens of sequences whose end depends on their number alone; the others are stepped singly."""

    def __init__(self, limits: SchedulerLimits, kv: KVCacheManager, draw: Draw) -> None:
        super().__init__(limits, kv)
        self.draw = draw
        self._step = 0
        self._coasting: dict[str, Coasting] = {}
        self._context = 0
        self._due: list[_Entry] = []
        self._ends: list[_Entry] = []
        self._apart: dict[str, Sequence] = {}
        self._orders: dict[str, int] = {}
        self._num_begun = 0
        self._reserved: list[Coasting] = []
        windows = {group.window_tokens for group in kv.groups if group.window_tokens is not None}
        # Remainders of the number of computed tokens at which a table changes: a block is complete, the next token
        # needs a new one, a window leaves one behind.
        phases = {0, 1 % kv.block_size, *(window % kv.block_size for window in windows)}
        size = kv.block_size
        #: Steps to the next of them, by remainder.
        self._to_phase = [min((phase - at - 1) % size + 1 for phase in phases) for at in range(size)]
        self._pools = set(kv.pools.values())

    @property
    def num_coasting(self) -> int:
        return len(self._coasting)

    @property
    def coasting_context(self) -> int:
        """Tokens that all coasting sequences together have computed."""
        return self._context

    def is_coasting(self, request_id: str) -> bool:
        return request_id in self._coasting

    def coasting(self) -> list[Sequence]:
        """Those that coast, brought up to date."""
        entries = list(self._coasting.values())
        for entry in entries:
            self._sync(entry)
        return [entry.sequence for entry in entries]

    # -- skipping --

    def steps_until_change(self) -> int:
        """Steps in which every running sequence draws one token and none ends before the last; 0: plan the next one."""
        count = len(self._coasting)
        if not count or self._apart or count > self.limits.max_num_batched_tokens:
            return 0
        if (
            self._waiting
            and len(self._running) < self.limits.max_num_seqs
            and count < self.limits.max_num_batched_tokens
        ):
            return 0  # it may be admitted in any step
        # In so many rounds of a block each, everybody surely finds its blocks, whatever windows free meanwhile.
        rounds = min([pool.num_available for pool in self._pools]) // count
        return min(self._first(self._ends) - self._step, rounds * self.kv.block_size)

    def advance(self, num_steps: int) -> list[Sequence]:
        """`num_steps` (at most steps_until_change()) steps at once; those that ended, already removed."""
        ended: list[Sequence] = []
        target = self._step + num_steps
        while (due := self._first(self._due)) <= target:
            self._count(due - 1 - self._step)
            entries = self._take_due(due)
            reserved = self._reserve_due(entries, due)
            assert reserved, f"step {due}: no memory for {len(entries)} sequences that were to coast"
            ended += self._pass_step(entries, [], [])[0]
        self._count(target - self._step)
        self.counters.steps += num_steps
        return ended

    # -- one step --

    def plan_step(self) -> StepPlan | None:
        """The next step: the sequences planned one by one, beside those that coast (none, in a step of the base kind).

        None when there is nothing to do.
        """
        plan = self._plan_lean()
        if plan is None:
            self._gather()
            return self.schedule()
        return plan if plan.sequences or self._coasting else None

    def update_step(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Apply a step: the plan's sequences in order, then coasting ones that ended with it."""
        if not self._coasting:
            sequences = self.update(plan, result)
            self._step += 1
            ended: list[Sequence] = []
        else:
            entries = self._reserved
            ended, sequences = self._pass_step(entries, list(plan.sequences), list(result.sequences))
        for sequence in sequences:
            self._maybe_coast(sequence)
        return sequences + ended

    def _plan_lean(self) -> StepPlan | None:
        """None: only the base class can plan this step (memory is short, or a decode must be watched)."""
        budget = self.limits.max_num_batched_tokens - len(self._coasting)
        if budget < 0 or any(sequence.is_decoding for sequence in self._apart.values()):
            return None
        entries = self._take_due(self._step + 1)
        if not self._reserve_due(entries, self._step + 1):
            return self._put_back(entries)
        planned: dict[str, int] = {}
        for sequence in self._apart.values():
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            if num_tokens:
                if not self.kv.reserve(sequence.request_id, sequence.num_computed_tokens + num_tokens):
                    return self._put_back(entries)
                planned[sequence.request_id] = num_tokens
                budget -= num_tokens
        self._admit(budget, planned)
        self._reserved = entries
        if not planned and not self._coasting:
            assert not self._waiting, f"{len(self._waiting)} requests wait and none can run"
            return StepPlan(self.counters.steps, ())
        self.counters.steps += 1
        chosen = tuple(self._plan(s, planned[s.request_id], 0) for s in self._apart.values() if s.request_id in planned)
        return StepPlan(self.counters.steps, chosen)

    def _put_back(self, entries: list[Coasting]) -> StepPlan | None:
        """What was reserved stays reserved: the base class will ask for the same and find it."""
        for entry in entries:
            heappush(self._due, (entry.due, entry.order, entry))
        return None

    def _gather(self) -> None:
        """End all coasting: every sequence is as single steps would have left it."""
        self.coasting()
        for entry in self._coasting.values():
            entry.is_over = True
        for entries in (self._coasting, self._due, self._ends):
            entries.clear()
        self._context = 0
        self._apart = {s.request_id: s for s in self._running}

    # -- inside a step --

    def _pass_step(
        self, entries: list[Coasting], planned: list[SequencePlan], got: list[SequenceResult]
    ) -> tuple[list[Sequence], list[Sequence]]:
        """The update of one step, in the running order; (coasting ones that ended, planned ones)."""
        self._step += 1
        self._context += len(self._coasting)
        self.counters.generation_tokens += len(self._coasting)
        if not planned:
            return [entry.sequence for entry in entries if self._settle(entry)], []
        ended, sequences = [], []
        todo: list[tuple[int, int]] = [(entry.order, index) for index, entry in enumerate(entries)]
        todo += [(self._orders[p.request_id], len(entries) + index) for index, p in enumerate(planned)]
        for _, index in sorted(todo):
            if index < len(entries):
                if self._settle(entries[index]):
                    ended.append(entries[index].sequence)
            else:
                index -= len(entries)
                sequence = self._by_id[planned[index].request_id]
                self._apply(sequence, planned[index], got[index])
                sequences.append(sequence)
        return ended, sequences

    def _settle(self, entry: Coasting) -> bool:
        """Look at a coasting sequence after the step it was due in; True when it ended with it."""
        sequence = entry.sequence
        self._sync(entry)
        if self.kv.enable_prefix_caching:
            self._extend_hashes(sequence)
        self.kv.advance(sequence.request_id, sequence.num_computed_tokens, sequence.block_hashes)
        if sequence.finish_reason is None:
            self._set_due(entry)
            return False
        self._leave(entry)
        self._remove(sequence)
        return True

    def _sync(self, entry: Coasting) -> None:
        num_tokens, entry.synced = self._step - entry.synced, self._step
        if num_tokens:
            sequence = entry.sequence
            drawn = self.draw(sequence, num_tokens)
            last = drawn.pop()
            sequence.token_ids += drawn
            sequence.append(last)
            sequence.num_computed_tokens += num_tokens

    def _count(self, num_steps: int) -> None:
        """Steps in which nobody is due."""
        self._step += num_steps
        self._context += num_steps * len(self._coasting)
        self.counters.generation_tokens += num_steps * len(self._coasting)

    # -- who coasts --

    def _maybe_coast(self, sequence: Sequence) -> None:
        """It needs only counting from here on: let it go."""
        request_id = sequence.request_id
        if request_id not in self._apart or not sequence.is_decoding or not _ends_by_length(sequence):
            return
        del self._apart[request_id]
        entry = self._coasting[request_id] = Coasting(sequence, self._orders[request_id], self._step)
        self._context += sequence.num_computed_tokens
        end = self._step + sequence.max_tokens - sequence.num_output_tokens
        heappush(self._ends, (end, entry.order, entry))
        self._set_due(entry)

    def _leave(self, entry: Coasting) -> None:
        self._context -= entry.sequence.num_computed_tokens
        entry.is_over = True
        del self._coasting[entry.sequence.request_id]

    def _computed(self, entry: Coasting, step: int) -> int:
        """Tokens it has computed after `step`."""
        return entry.sequence.num_computed_tokens + step - entry.synced

    def _set_due(self, entry: Coasting) -> None:
        sequence = entry.sequence
        to_phase = self._to_phase[sequence.num_computed_tokens % self.kv.block_size]
        to_end = sequence.max_tokens - sequence.num_output_tokens
        entry.due = self._step + min(to_phase, to_end)
        heappush(self._due, (entry.due, entry.order, entry))

    def _first(self, entries: list[_Entry]) -> int:
        """The first step in a heap of steps, without those that no longer coast."""
        while entries:
            step, _, entry = entries[0]
            if not entry.is_over:
                return step
            heappop(entries)
        return _NEVER

    def _take_due(self, step: int) -> list[Coasting]:
        """Those due after `step`, in running order."""
        entries = []
        while self._first(self._due) == step:
            entries.append(heappop(self._due)[2])
        return entries

    def _reserve_due(self, entries: list[Coasting], step: int) -> bool:
        size = self.kv.block_size
        first = 1 % size  # only the first token of a block needs a new one
        for entry in entries:
            num_tokens = self._computed(entry, step)
            if num_tokens % size == first and not self.kv.reserve(entry.sequence.request_id, num_tokens):
                return False
        return True

    # -- the base class, told apart --

    def _begin(self, sequence: Sequence, hit: PrefixHit) -> None:
        super()._begin(sequence, hit)
        self._apart[sequence.request_id] = sequence
        self._orders[sequence.request_id] = self._num_begun
        self._num_begun += 1

    def _block_tables(self, request_id: str) -> dict[str, BlockTable]:
        """None: nobody reads or writes rows."""
        return {}

    def _preempt(self, sequence: Sequence) -> None:
        super()._preempt(sequence)
        del self._apart[sequence.request_id], self._orders[sequence.request_id]

    def _remove(self, sequence: Sequence) -> None:
        self._apart.pop(sequence.request_id, None)
        self._orders.pop(sequence.request_id, None)
        super()._remove(sequence)

    def _pending_hashes(self) -> set[bytes]:
        if not (self.limits.enable_inflight_sharing and self.kv.enable_prefix_caching):
            return set()
        return {block_hash for s in self._apart.values() for block_hash in self._uncomputed_hashes(s)}

    def abort(self, request_id: str) -> Sequence | None:
        entry = self._coasting.get(request_id)
        if entry is not None:
            self._sync(entry)
            self._leave(entry)
        return super().abort(request_id)

    def check_integrity(self) -> None:
        super().check_integrity()
        known = {s.request_id for s in self._running}
        assert set(self._apart) | set(self._coasting) == known == set(self._orders), "running sequences differ"
        assert not set(self._apart) & set(self._coasting)
        computed = sum(self._computed(entry, self._step) for entry in self._coasting.values())
        assert computed == self._context, f"{computed} tokens of coasting sequences, counted {self._context}"


def _ends_by_length(sequence: Sequence) -> bool:
    """No token that it could draw ends it."""
    sampling = sequence.request.sampling
    return (
        sequence.grammar is None
        and sampling.logprobs is None
        and not sampling.stop_token_ids
        and (sampling.ignore_eos or not sequence.request.eos_token_ids)
    )
