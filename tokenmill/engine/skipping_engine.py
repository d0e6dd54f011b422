"""An engine on virtual time: the production engine with modelled steps, many of which pass at once.

`begin` plans what comes next and says when its steps end; `step` makes it so, for as many of them as `num_steps` says:
whoever drives it may stop a span early when a message comes. A crash between the two has nothing to undo.
Not responsible for: when it is called (the worker's loop), what a step costs (a step-time model).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tokenmill.core.clock import Clock
from tokenmill.core.errors import CapabilityError
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, TokenDelta
from tokenmill.core.step import SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.cost.shares import row_weight
from tokenmill.cost.steptime.shape import StepShape, StepTime
from tokenmill.engine.engine import Engine
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.purse import Purse
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.skipping import SkippingScheduler


@dataclass(frozen=True, slots=True)
class Span:
    """Steps planned as one.

    plan           of the sequences that are planned one by one; None: nobody but coasting decodes
    num_steps      how many there are
    elapsed_s      seconds of the first n of them
    """

    plan: StepPlan | None
    num_steps: int
    start_s: float
    elapsed_s: Callable[[int], float]

    def steps_by(self, now_s: float) -> int:
        """Steps that are over at `now_s`, the one under way included: a message taken then finds it done."""
        whole_s = self.elapsed_s(self.num_steps)
        passed_s = now_s - self.start_s
        count = max(1, min(self.num_steps, int(self.num_steps * passed_s / whole_s) if whole_s > 0 else 1))
        while count < self.num_steps and self.elapsed_s(count) < passed_s:
            count += 1
        while count > 1 and self.elapsed_s(count - 1) >= passed_s:
            count -= 1
        return count


class SkippingEngine(Engine):
    """
    step_time    seconds of a step by its shape
    pace         spends them: moves the worker's clock on
    is_quiet     tokens of a request are told with its first and with its last one only: a run of millions of requests
                 is then paid per request, not per token. What they cost in between is `held_s`
    most_skip_s  a span is no longer than this: reports of load stay fresh
    """

    def __init__(
        self,
        card: ModelCard,
        scheduler: SkippingScheduler,
        clock: Clock,
        *,
        step_time: StepTime,
        pace: Callable[[float], None],
        context_weight: float = 0.0,
        is_quiet: bool = False,
        most_skip_s: float = 1.0,
    ) -> None:
        super().__init__(card, scheduler, _NoRunner(), clock, context_weight=context_weight)
        self._skipping = scheduler
        self._step_time = step_time
        self._pace = pace
        self._is_quiet = is_quiet
        self._most_skip_s = most_skip_s
        self._purse = Purse(context_weight)
        self._checked_ids: list[int] | None = None
        self._told: dict[str, int] = {}
        self._span: Span | None = None
        self.num_steps = 1

    def add(self, request: Request) -> None:
        sampling = request.sampling
        if request.grammar is not None or sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            raise CapabilityError("the twin has neither grammars nor logprobs: ask for plain text")
        super().add(request)
        if request.output_token_ids:
            self._told[request.request_id] = len(request.prompt_token_ids) + len(request.output_token_ids)

    def _check_token_ids(self, request: Request) -> None:
        """Prompts that share one list of ids are looked at once."""
        if request.prompt_token_ids is not self._checked_ids:
            super()._check_token_ids(request)
            self._checked_ids = request.prompt_token_ids

    def abort(self, request_id: str) -> bool:
        assert self._span is None, "messages are taken between steps"
        self._purse.close(request_id)
        self._told.pop(request_id, None)
        return super().abort(request_id)

    @property
    def held_s(self) -> float:
        """Seconds of steps so far whose deltas are still to come."""
        return self._purse.held_s

    @property
    def kv(self) -> KVCacheManager:
        """To be looked at by checks."""
        return self._scheduler.kv

    # -- a span --

    @property
    def span(self) -> Span | None:
        """What is under way."""
        return self._span

    def begin(self) -> Span | None:
        """Plan what comes next; None when there is nothing to do. The same until `step` has made it so."""
        if self._span is None:
            self._span = self._plan_span()
            self.num_steps = 1 if self._span is None else self._span.num_steps
        return self._span

    def step(self) -> list[TokenDelta]:
        """The first `num_steps` steps of the span."""
        span, self._span = self.begin(), None
        if span is None:
            return []
        seconds = span.elapsed_s(self.num_steps)
        self._pace(seconds)
        shares = self._charge(span, seconds)
        if span.plan is None:
            ended = self._skipping.advance(self.num_steps)
            return self._coasting_deltas(ended)
        return self._planned_deltas(span, span.plan, shares)

    # -- inside --

    def _plan_span(self) -> Span | None:
        num_steps, start_s = self._skipping.steps_until_change(), self._clock.now()
        if num_steps == 0:
            plan = self._skipping.plan_step()
            if not self._skipping.num_coasting:
                self._purse.end_all()
            if plan is None:
                return None
            seconds = self._step_time.step_s(self._shape(plan))
            return Span(plan, 1, start_s, lambda n: seconds)
        batch, context, model = self._skipping.num_coasting, self._skipping.coasting_context, self._step_time

        @cache
        def elapsed_s(count: int) -> float:
            return model.decode_seconds(batch, context, count)

        if (whole_s := elapsed_s(num_steps)) > self._most_skip_s:
            num_steps = max(1, int(num_steps * self._most_skip_s / whole_s))
        return Span(None, num_steps, start_s, elapsed_s)

    def _shape(self, plan: StepPlan) -> StepShape:
        apart = StepShape.of_plan(plan)
        batch = self._skipping.num_coasting
        return StepShape(
            apart.num_prefill_tokens,
            apart.num_prefill_seqs,
            apart.prefill_context_sum,
            apart.num_decode_seqs + batch,
            apart.decode_context_sum + self._skipping.coasting_context,
            apart.num_draft_tokens,
            apart.num_sampled + batch,
        )

    def _charge(self, span: Span, seconds: float) -> list[float]:
        """Shares of the planned sequences; the rest is held for the coasting ones."""
        weights = [
            row_weight(s.num_scheduled_tokens, s.num_computed_tokens, context_weight=self._context_weight)
            for s in (() if span.plan is None else span.plan.sequences)
        ]
        scheduler = self._skipping
        return self._purse.spend(seconds, self.num_steps, weights, scheduler.num_coasting, scheduler.coasting_context)

    def _planned_deltas(self, span: Span, plan: StepPlan, shares: list[float]) -> list[TokenDelta]:
        results = tuple(self._drawn(planned) for planned in plan.sequences)
        sequences = self._skipping.update_step(plan, StepResult(results))
        planned, ended = sequences[: len(results)], sequences[len(results) :]
        deltas = self._coasting_deltas(ended)
        for sequence, share, row in zip(planned, shares, plan.sequences, strict=True):
            deltas.append(self._planned_delta(sequence, share, row, span.start_s))
            if self._skipping.is_coasting(sequence.request_id):
                self._purse.open(sequence.request_id, sequence.num_computed_tokens)
        return deltas

    def _drawn(self, planned: SequencePlan) -> SequenceResult:
        sequence = self._scheduler.get(planned.request_id)
        assert sequence is not None
        drawn = tuple(self._skipping.draw(sequence, 1)) if planned.is_sampling else ()
        return SequenceResult(planned.request_id, drawn, planned.num_scheduled_tokens)

    def _coasting_deltas(self, ended: list[Sequence]) -> list[TokenDelta]:
        """Of those that ended, and of the others unless they are kept for later."""
        deltas = [self._tell(sequence, self._purse.close(sequence.request_id)) for sequence in ended]
        if not self._is_quiet:
            coasting = [s for s in self._skipping.coasting() if s.request_id in self._purse]
            deltas += [self._tell(sequence, self._purse.pay(sequence.request_id)) for sequence in coasting]
        return deltas

    def _tell(self, sequence: Sequence, seconds: float) -> TokenDelta:
        """What was drawn since the last time."""
        return TokenDelta(
            request_id=sequence.request_id,
            token_ids=self._untold(sequence),
            finish_reason=sequence.finish_reason,
            seconds=seconds,
        )

    def _planned_delta(self, sequence: Sequence, share: float, row: SequencePlan, start_s: float) -> TokenDelta:
        is_first, sequence.pending_first = sequence.pending_first, False
        is_decode = row.num_computed_tokens + row.num_scheduled_tokens > sequence.num_prompt_tokens
        num_prefill = row.num_scheduled_tokens - is_decode
        return TokenDelta(
            request_id=sequence.request_id,
            token_ids=self._untold(sequence),
            finish_reason=sequence.finish_reason,
            num_cached_tokens=sequence.num_cached_tokens if is_first else None,
            queue_s=max(0.0, start_s - sequence.request.arrival_s) if is_first else None,
            seconds=share + self._purse.close(sequence.request_id),
            prefill_s=share * num_prefill / row.num_scheduled_tokens,
            num_prefill_tokens=num_prefill,
        )

    def _untold(self, sequence: Sequence) -> tuple[int, ...]:
        told = self._told.get(sequence.request_id, sequence.num_prompt_tokens)
        if sequence.finish_reason is None:
            self._told[sequence.request_id] = len(sequence.token_ids)
        else:
            self._told.pop(sequence.request_id, None)
        return tuple(sequence.token_ids[told:])


class _NoRunner:
    """Tokens are drawn by the scheduler's `draw`; there is nothing else to run."""

    def add(self, request: Request, grammar: object = None) -> None: ...

    def remove(self, request_id: str) -> None: ...

    def run(self, plan: StepPlan) -> StepResult:
        raise AssertionError("a twin runs nothing")

    def memory_report(self) -> dict[str, int]:
        return {}
