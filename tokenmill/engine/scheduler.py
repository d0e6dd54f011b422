"""Who computes what in the next step: continuous batching under a token budget, chunked prefill, preemption.

Pure: plans with counts of tokens, needs no clock, no torch. Not responsible for running the plan.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.request import FinishReason
from tokenmill.core.scheduling import SchedulerLimits
from tokenmill.core.step import BlockTable, SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.kvcache.manager import KVCacheManager, PrefixHit
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.speculative.counters import DraftCounters
from tokenmill.engine.speculative.depth import Candidate, DepthPolicy, StepCost


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since start. A prefix query is a prompt token looked up, a hit one that was found."""

    num_preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class AheadPlan:
    """num_running  sequences there must be when the running step has ended, for the plan to hold"""

    plan: StepPlan
    num_running: int


@dataclass(frozen=True, slots=True)
class _After:
    """A sequence as it will be when the running step has ended and drew what it was to draw."""

    sequence: Sequence
    num_computed: int
    num_uncomputed: int
    is_decoding: bool
    is_over: bool

    @property
    def key(self) -> str:
        return self.sequence.request_id

    def plan(self, num_tokens: int, kv: KVCacheManager) -> SequencePlan:
        return SequencePlan(
            request_id=self.key,
            num_computed_tokens=self.num_computed,
            num_scheduled_tokens=num_tokens,
            is_sampling=num_tokens == self.num_uncomputed,
            block_tables=kv.block_tables(self.key),
            num_protected_tokens=self.sequence.num_protected_tokens,
        )


def _after(sequence: Sequence, planned: SequencePlan | None) -> _After:
    num_drawn = int(planned is not None and planned.is_sampling)
    num_computed = sequence.num_computed_tokens + (0 if planned is None else planned.num_scheduled_tokens)
    num_uncomputed = len(sequence.token_ids) + num_drawn - num_computed
    num_output = sequence.num_output_tokens + num_drawn
    is_over = num_drawn > 0 and num_output >= sequence.max_tokens
    return _After(sequence, num_computed, num_uncomputed, num_uncomputed == 1 and num_output > 0, is_over)


class Scheduler:
    """Decodes go first, then prefills that have begun, then new requests in order (priority, arrival).

    Memory is reserved step by step; when it runs out, the last sequence in order is preempted: its blocks are
    let go (its published ones may be found again) and it starts over later, tokens kept.

    depth   how many drafts decoding sequences get; None: none. Drafts take memory and budget that nobody else wants.
    """

    def __init__(self, limits: SchedulerLimits, kv: KVCacheManager, depth: DepthPolicy | None = None) -> None:
        self.limits = limits
        self.kv = kv
        self.counters = SchedulerCounters()
        self.drafts = DraftCounters()
        self._depth = depth
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._hashers: dict[str, BlockHasher] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def get(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    def add(self, sequence: Sequence, hasher: BlockHasher) -> None:
        """Queue a sequence that was checked to fit an empty engine."""
        assert sequence.request_id not in self._by_id, f"duplicate request id {sequence.request_id}"
        self._by_id[sequence.request_id] = sequence
        self._hashers[sequence.request_id] = hasher
        insort(self._waiting, sequence, key=lambda s: s.order)

    def abort(self, request_id: str) -> Sequence | None:
        """Drop a request between two steps; its blocks are free at once. None when it is not here (any more)."""
        sequence = self._by_id.get(request_id)
        if sequence is not None:
            sequence.finish_reason = FinishReason.ABORT
            self._remove(sequence)
        return sequence

    # -- schedule --

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        budget = self.limits.max_num_batched_tokens
        planned: dict[str, int] = {}
        num_preemptions = self.counters.num_preemptions
        for sequence in self._continuing():
            if sequence not in self._running:
                continue  # preempted by one before it
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            if num_tokens and self._reserve(sequence, num_tokens, planned):
                planned[sequence.request_id] = num_tokens
                budget -= num_tokens
        drafts = self._plan_drafts(planned, budget)
        if self.counters.num_preemptions == num_preemptions:
            self._admit(budget - sum(drafts.values()), planned)
        if not planned:
            assert not self._waiting, f"{len(self._waiting)} requests wait and none can run"
            return None
        self.counters.steps += 1
        return StepPlan(
            self.counters.steps,
            tuple(
                self._plan(s, planned[s.request_id], drafts.get(s.request_id, 0))
                for s in self._running
                if s.request_id in planned
            ),
            keeps_drafts=self._depth is None or not self._depth.is_dormant,
        )

    # -- the step after the one that runs --

    def plan_ahead(self, running: StepPlan) -> AheadPlan | None:
        """What `schedule` will say once `running` has ended, if nothing unforeseen happens; changes nothing but that
        memory which the plan needs is reserved.

        None where it can not be said yet: requests wait (what they share may be under way), drafts are planned (their
        fate is open), memory is short, a window moves, or nothing is left to do.
        """
        if self._waiting or self._depth is not None or self.kv.has_windows:
            return None
        planned = {p.request_id: p for p in running.sequences}
        after = [_after(s, planned.get(s.request_id)) for s in self._running]
        staying = [row for row in after if not row.is_over]
        budget = self.limits.max_num_batched_tokens
        num_tokens: dict[str, int] = {}
        for row in sorted(staying, key=lambda row: not row.is_decoding):  # stable: decodes first, as `_continuing`
            num = min(row.num_uncomputed, budget)
            if num and not self.kv.reserve(row.key, row.num_computed + num):
                return None
            if num:
                num_tokens[row.key] = num
                budget -= num
        plans = [row.plan(num_tokens[row.key], self.kv) for row in staying if row.key in num_tokens]
        return AheadPlan(StepPlan(self.counters.steps + 1, tuple(plans)), len(staying)) if plans else None

    def confirm(self, ahead: AheadPlan | None) -> StepPlan | None:
        """The plan made ahead, now that its premise is history; None when something else happened: schedule anew."""
        if ahead is None or self._waiting or len(self._running) != ahead.num_running:
            return None
        self.counters.steps += 1
        return ahead.plan

    def _plan_drafts(self, planned: dict[str, int], budget: int) -> dict[str, int]:
        """Drafts behind the newest token of decoding sequences; never at the price of another's place."""
        if self._depth is None:
            return {}
        decoding = [s for s in self._running if s.is_decoding and s.request_id in planned]
        wishes = self._depth.plan(
            [Candidate(s.request_id, s.num_useful_drafts) for s in decoding], sum(planned.values()) - len(decoding)
        )
        drafts = {}
        for sequence, wish in zip(decoding, wishes, strict=True):
            num_drafts = min(wish, budget)
            end = sequence.num_computed_tokens + 1 + num_drafts
            if num_drafts and self.kv.reserve(sequence.request_id, end):
                drafts[sequence.request_id] = num_drafts
                budget -= num_drafts
        return drafts

    def _continuing(self) -> list[Sequence]:
        decoding = [s for s in self._running if s.is_decoding]
        return decoding + [s for s in self._running if not s.is_decoding]

    def _reserve(self, sequence: Sequence, num_tokens: int, planned: dict[str, int]) -> bool:
        """Get memory for the sequence's next tokens, preempting the last in order as often as needed."""
        while not self.kv.reserve(sequence.request_id, sequence.num_computed_tokens + num_tokens):
            victim = max((s for s in self._running if s.request_id not in planned), key=lambda s: s.order)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.kv.release(sequence.request_id)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.counters.num_preemptions += 1
        insort(self._waiting, sequence, key=lambda s: s.order)

    def _admit(self, budget: int, planned: dict[str, int]) -> None:
        pending = self._pending_hashes()
        for sequence in list(self._waiting):
            if budget == 0 or len(self._running) == self.limits.max_num_seqs:
                return
            hit = self._match(sequence)
            if self._is_being_computed(sequence, hit, pending):
                continue  # its next block is on the way: share it rather than compute it twice
            num_left = len(sequence.token_ids) - hit.resume_block * self.kv.block_size
            num_tokens = min(num_left, budget)
            if num_tokens < num_left and not self.limits.enable_chunked_prefill:
                return
            if not self._start(sequence, hit, len(sequence.token_ids) - num_left + num_tokens):
                return
            planned[sequence.request_id] = num_tokens
            budget -= num_tokens
            pending.update(self._uncomputed_hashes(sequence))

    def _start(self, sequence: Sequence, hit: PrefixHit, num_tokens: int) -> bool:
        """Move a waiting sequence to running, with memory for its first `num_tokens`; False when there is none."""
        if not self.kv.can_start(sequence.block_hashes, hit, len(sequence.token_ids), sequence.token_ids):
            return False
        self.kv.start(sequence.request_id, sequence.block_hashes, hit, sequence.token_ids)
        if not self.kv.reserve(sequence.request_id, num_tokens):
            self.kv.release(sequence.request_id)
            return False
        self._begin(sequence, hit)
        return True

    def _pending_hashes(self) -> set[bytes]:
        if not (self.limits.enable_inflight_sharing and self.kv.enable_prefix_caching):
            return set()
        return {block_hash for s in self._running for block_hash in self._uncomputed_hashes(s)}

    def _uncomputed_hashes(self, sequence: Sequence) -> list[bytes]:
        """Full blocks that a running sequence is going to compute and publish."""
        return (
            [] if sequence.is_decoding else sequence.block_hashes[sequence.num_computed_tokens // self.kv.block_size :]
        )

    def _is_being_computed(self, sequence: Sequence, hit: PrefixHit, pending: set[bytes]) -> bool:
        if sequence.request.sampling.prompt_logprobs is not None or not self.limits.enable_inflight_sharing:
            return False
        # The block with the last prompt token is always computed, so waiting for it would gain nothing.
        useful = sequence.block_hashes[: (len(sequence.token_ids) - 1) // self.kv.block_size]
        return hit.num_blocks < len(useful) and useful[hit.num_blocks] in pending

    def _match(self, sequence: Sequence) -> PrefixHit:
        """The prefix hit; at least the last token is always computed, to have its logits."""
        wants_prompt_logprobs = sequence.request.sampling.prompt_logprobs is not None
        if not self.kv.enable_prefix_caching or (wants_prompt_logprobs and sequence.num_output_tokens == 0):
            return PrefixHit()  # logprobs of cached positions do not exist: recompute them
        self._extend_hashes(sequence)
        return self.kv.match(sequence.block_hashes, (len(sequence.token_ids) - 1) // self.kv.block_size)

    def _begin(self, sequence: Sequence, hit: PrefixHit) -> None:
        self._waiting.remove(sequence)
        self._running.append(sequence)
        sequence.num_computed_tokens = hit.resume_block * self.kv.block_size
        sequence.num_protected_tokens = hit.num_blocks * self.kv.block_size
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.counters.prefix_queries += sequence.num_prompt_tokens
            self.counters.prefix_hits += sequence.num_computed_tokens

    def _plan(self, sequence: Sequence, num_tokens: int, num_drafts: int) -> SequencePlan:
        return SequencePlan(
            request_id=sequence.request_id,
            num_computed_tokens=sequence.num_computed_tokens,
            num_scheduled_tokens=num_tokens + num_drafts,
            is_sampling=num_tokens == sequence.num_uncomputed_tokens,
            block_tables=self._block_tables(sequence.request_id),
            num_draft_tokens=num_drafts,
            num_protected_tokens=sequence.num_protected_tokens,
        )

    def _block_tables(self, request_id: str) -> dict[str, BlockTable]:
        return self.kv.block_tables(request_id)

    # -- update --

    def update(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """Apply a step's result; returns the plan's sequences in order (finished ones are already removed)."""
        sequences = []
        for planned, got in zip(plan.sequences, result.sequences, strict=True):
            sequence = self._by_id[planned.request_id]
            self._record_drafts(planned, got)
            self._apply(sequence, planned, got)
            sequences.append(sequence)
        return sequences

    def _record_drafts(self, planned: SequencePlan, got: SequenceResult) -> None:
        if self._depth is None or got.error is not None:
            return
        if planned.num_draft_tokens:
            self._depth.record(planned.request_id, got.num_draft_tokens, got.num_accepted_drafts)
        if got.num_draft_tokens:
            self.drafts.record(got.num_draft_tokens, got.num_accepted_drafts)

    def record_seconds(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """What the step took, once it is over: what drafts may cost is judged by it."""
        if self._depth is not None:
            self._depth.record_step(StepCost.of(plan, result, seconds))

    def _apply(self, sequence: Sequence, planned: SequencePlan, got: SequenceResult) -> None:
        before = sequence.num_computed_tokens
        sequence.num_computed_tokens += got.num_accepted_tokens
        prompt = sequence.num_prompt_tokens
        if sequence.num_output_tokens == 0:
            self.counters.prompt_tokens += min(sequence.num_computed_tokens, prompt) - min(before, prompt)
        for token_id in got.token_ids:
            sequence.append(token_id)
            if sequence.grammar is not None:
                sequence.grammar.commit((token_id,))
            self.counters.generation_tokens += 1
            if sequence.finish_reason is not None:
                break
        if got.error is not None:
            sequence.finish_reason = FinishReason.ERROR
        if self.kv.enable_prefix_caching:
            self._extend_hashes(sequence)
        self.kv.advance(
            sequence.request_id,
            sequence.num_computed_tokens,
            sequence.block_hashes,
            sequence.token_ids,
            got.draft_rows_from,
        )
        if sequence.finish_reason is not None:
            self._remove(sequence)

    def _extend_hashes(self, sequence: Sequence) -> None:
        self._hashers[sequence.request_id].extend(sequence.block_hashes, sequence.token_ids)

    def _remove(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
            self.kv.release(sequence.request_id)
        else:
            self._waiting.remove(sequence)
        del self._by_id[sequence.request_id], self._hashers[sequence.request_id]
        if self._depth is not None:
            self._depth.forget(sequence.request_id)

    def check_integrity(self) -> None:
        """Assert that every sequence is in exactly one queue and memory accounting holds."""
        ids = [s.request_id for s in self._waiting + self._running]
        assert len(ids) == len(set(ids)) == len(self._by_id), f"{len(ids)} queued, {len(self._by_id)} known"
        assert self._waiting == sorted(self._waiting, key=lambda s: s.order)
        assert len(self._running) <= self.limits.max_num_seqs
        self.kv.check_integrity()
