"""One engine: step = schedule, run, update. The same class serves offline, in a worker and in the twin."""

from __future__ import annotations

from tokenmill.core.clock import Clock
from tokenmill.core.errors import BadRequestError, CapabilityError, TokenmillError
from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, TokenDelta, check_prompt
from tokenmill.core.step import SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.core.wire import WorkerStats
from tokenmill.cost.shares import Rows, Share, StepSpans, bill_step
from tokenmill.engine.kvcache.kv_log import KVLog
from tokenmill.engine.runners.base import Runner
from tokenmill.engine.scheduler import Scheduler
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.structured.desk import GrammarDesk

#: With nothing to run but grammars to wait for, a step blocks no longer than this: messages wait as long.
GRAMMAR_WAIT_S = 0.01


class Engine:
    """Not thread-safe: one loop owns it.

    clock           measures the seconds that requests are charged
    context_weight  attention work per context token, in units of a row's other work (cost/shares)
    grammars        None: requests with a grammar are refused
    """

    def __init__(
        self,
        card: ModelCard,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        *,
        context_weight: float = 0.0,
        grammars: GrammarDesk | None = None,
    ) -> None:
        self.card = card
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._context_weight = context_weight
        self._grammars = grammars
        self._spans = StepSpans()
        self._num_added = 0
        self._unsalted = self._new_hasher(None)  # keeps nothing of a sequence: most requests share it

    # -- requests --

    def add(self, request: Request) -> None:
        """Queue a request, or raise a typed error that says why it can never be served here."""
        if self._scheduler.get(request.request_id) is not None or self._is_parked(request.request_id):
            raise BadRequestError(f"request id {request.request_id!r} is in use: choose another", param="request_id")
        request.sampling.check(self.card.vocab_size)
        if request.sampling.n != 1:
            raise CapabilityError("an engine takes one choice per request: expand n at the door", param="n")
        self._check_token_ids(request)
        self._check_grammar(request)
        max_tokens = check_prompt(
            len(request.prompt_token_ids),
            request.sampling.max_tokens,
            self.card.max_model_len,
            self.card.kv_capacity_tokens,
        )
        sequence = Sequence(
            request=request,
            max_tokens=max_tokens,
            arrival_order=self._num_added,
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            block_hashes=list(request.block_hashes),
        )
        self._num_added += 1
        if self._grammars is not None and request.grammar is not None:
            self._grammars.park(sequence, request.grammar)
        else:
            self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        self._runner.add(sequence.request, sequence.grammar)
        self._scheduler.add(sequence, self._hasher(sequence.request))

    def _is_parked(self, request_id: str) -> bool:
        return self._grammars is not None and request_id in self._grammars

    def _check_grammar(self, request: Request) -> None:
        if request.grammar is None:
            return
        request.grammar.check()
        if self._grammars is None:
            raise CapabilityError(f"model {self.card.name!r} cannot be held to a grammar", param=request.grammar.param)

    def _check_token_ids(self, request: Request) -> None:
        ids = request.prompt_token_ids
        if request.output_token_ids:
            ids = ids + request.output_token_ids
        if ids and not (min(ids) >= 0 and max(ids) < self.card.vocab_size):
            bad = next(i for i in ids if not 0 <= i < self.card.vocab_size)
            raise BadRequestError(
                f"the prompt holds token id {bad}; the model knows 0 to {self.card.vocab_size - 1}", param="prompt"
            )

    def _hasher(self, request: Request) -> BlockHasher:
        return self._unsalted if request.cache_salt is None else self._new_hasher(request.cache_salt)

    def _new_hasher(self, salt: str | None) -> BlockHasher:
        card = self.card
        return BlockHasher(card.block_size, card.weights_version, salt=salt, algorithm=card.hash_algorithm)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks at once; False when it is not here (it may just have finished)."""
        if self._grammars is not None and self._grammars.drop(request_id):
            return True
        if self._scheduler.abort(request_id) is None:
            return False
        self._runner.remove(request_id)
        return True

    def has_work(self) -> bool:
        return self._scheduler.num_running + self._num_waiting > 0

    @property
    def _num_waiting(self) -> int:
        return self._scheduler.num_waiting + (0 if self._grammars is None else len(self._grammars))

    # -- the step --

    def step(self) -> list[TokenDelta]:
        """Run one step; one delta per sequence in it, the step's seconds split over them. [] when idle.

        Requests whose grammar is wrong end here too, before any token.
        """
        start_s = self._clock.now()
        refused = self._take_grammars(start_s)
        plan = self._scheduler.schedule()
        if plan is None:
            if self._grammars is not None and not refused:
                self._grammars.wait(GRAMMAR_WAIT_S)
            return refused
        result = self._runner.run(plan)
        sequences = self._take_over(plan, result)
        return refused + self._deltas(plan, result, sequences, start_s, self._clock.now())

    def _take_over(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        """The step's tokens are part of their sequences from here on; those that ended are gone."""
        sequences = self._scheduler.update(plan, result)
        for sequence in sequences:
            if sequence.finish_reason is not None:
                self._runner.remove(sequence.request_id)
        return sequences

    def _deltas(
        self, plan: StepPlan, result: StepResult, sequences: list[Sequence], start_s: float, end_s: float
    ) -> list[TokenDelta]:
        bills = self._bill(plan, result, sequences, start_s, end_s)
        return [
            _delta(sequence, got, rows, share, start_s)
            for sequence, got, (rows, share) in zip(sequences, result.sequences, bills, strict=True)
        ]

    def _take_grammars(self, now_s: float) -> list[TokenDelta]:
        """Queue the requests whose grammar is there; one delta for each whose grammar is wrong."""
        refused = []
        for ready in [] if self._grammars is None else self._grammars.poll(now_s):
            if ready.error is None:
                self._queue(ready.sequence)
            else:
                refused.append(_refusal(ready.sequence.request_id, ready.error))
        return refused

    def _bill(
        self, plan: StepPlan, result: StepResult, sequences: list[Sequence], start_s: float, end_s: float
    ) -> list[tuple[Rows, Share]]:
        """What each sequence computed in the step that ended, and its share of the step's seconds."""
        seconds = self._spans.take(start_s, end_s)
        self._scheduler.record_seconds(plan, result, seconds)
        rows = [
            _rows(planned, got, sequence.num_prompt_tokens)
            for planned, got, sequence in zip(plan.sequences, result.sequences, sequences, strict=True)
        ]
        draft_s = min(result.draft_s, seconds)
        return list(
            zip(rows, bill_step(seconds, rows, draft_s=draft_s, context_weight=self._context_weight), strict=True)
        )

    def settled_s(self, now_s: float) -> float:
        """Up to when the deltas handed out so far account for this engine's time; later time is of a running step."""
        return now_s

    # -- views --

    @property
    def held_s(self) -> float:
        """Seconds of steps whose deltas are still to come: every step tells its own."""
        return 0.0

    def stats(self) -> WorkerStats:
        counters = self._scheduler.counters
        return WorkerStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._num_waiting,
            kv_usage=self._scheduler.kv.usage,
            num_preemptions_total=counters.num_preemptions,
            prefix_queries_total=counters.prefix_queries,
            prefix_hits_total=counters.prefix_hits,
            prompt_tokens_total=counters.prompt_tokens,
            generation_tokens_total=counters.generation_tokens,
            steps_total=counters.steps,
            drafts_total=self._scheduler.drafts.num_drafts,
            draft_tokens_total=self._scheduler.drafts.num_tokens,
            accepted_tokens_total=self._scheduler.drafts.num_accepted,
            accepted_at_total=tuple(self._scheduler.drafts.accepted_at),
        )

    def open_cache_log(self) -> KVLog:
        """Changes of the prefix cache, written down from the first call on."""
        return self._scheduler.kv.open_log(self.card)

    def clear_cache(self) -> None:
        """Forget the prefix cache (running sequences keep their blocks)."""
        self._scheduler.kv.clear_cache()

    def check_integrity(self) -> None:
        """Assert that no block is lost or double-booked; cheap enough to run whenever idle."""
        self._scheduler.check_integrity()

    @property
    def runner(self) -> Runner:
        """To be looked at by measurements."""
        return self._runner

    def memory_report(self) -> dict[str, int]:
        return self._runner.memory_report()


def _refusal(request_id: str, error: TokenmillError) -> TokenDelta:
    return TokenDelta(
        request_id=request_id,
        finish_reason=FinishReason.ERROR,
        error=(error.code, error.message),
        error_param=error.param,
    )


def _rows(planned: SequencePlan, got: SequenceResult, num_prompt_tokens: int) -> Rows:
    """The row that ends a sequence with output is a decode, and drafts follow it; rows before it are prefill."""
    num_rows = planned.num_scheduled_tokens if got.error is not None else got.num_rows
    num_before_drafts = max(0, num_rows - got.num_draft_tokens)
    is_decoding = planned.is_sampling and planned.num_computed_tokens + num_before_drafts > num_prompt_tokens
    return Rows(
        num_tokens=num_rows,
        context_len=planned.num_computed_tokens,
        num_prefill=max(0, num_before_drafts - is_decoding),
        num_rejected=got.num_rejected_tokens,
    )


def _delta(sequence: Sequence, got: SequenceResult, rows: Rows, share: Share, start_s: float) -> TokenDelta:
    error = None if got.error is None else (got.error_code, got.error)
    is_first = sequence.pending_first
    sequence.pending_first = False
    return TokenDelta(
        request_id=sequence.request_id,
        token_ids=got.token_ids,
        logprobs=got.logprobs,
        prompt_logprobs=got.prompt_logprobs,
        finish_reason=FinishReason.ERROR if error else sequence.finish_reason,
        stop_token_id=sequence.stop_token_id,
        num_cached_tokens=sequence.num_cached_tokens if is_first else None,
        queue_s=max(0.0, start_s - sequence.request.arrival_s) if is_first else None,
        seconds=share.seconds,
        prefill_s=share.prefill_s,
        draft_s=share.draft_s,
        rejected_s=share.rejected_s,
        num_prefill_tokens=rows.num_prefill,
        num_draft_tokens=got.num_draft_tokens,
        num_rejected_tokens=got.num_rejected_tokens,
        error=error,
    )
