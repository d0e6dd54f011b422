"""Clients on virtual time: send the turns that the conductor says are due, and note what came of each.

Checks as it goes that every request ends exactly once and that answers have neither gaps nor doubles.
Not responsible for: when turns are due (workloads/conductor), what the figures mean (workloads/request_metrics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenmill.core.errors import TokenmillError
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, SamplingParams, TokenDelta
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.requests import Outcome
from tokenmill.sim.events import EventQueue
from tokenmill.sim.frontend import SimFrontend
from tokenmill.sim.prompts import PromptMaker
from tokenmill.workloads.conductor import Conductor, Due
from tokenmill.workloads.request_record import RequestRecord


@dataclass(slots=True)
class _Open:
    """A request in flight, as its client sees it."""

    due: Due
    sent_s: float
    request: Request
    chunk_s: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    last_token_id: int = 0
    num_cached_tokens: int = 0
    answer: list[int] | None = None


class SimLoad:
    """
    cards      of the models, in the order of the workload's roles
    keeps_all  every chunk's time is noted; without, the first and the last of a request
    door_s     of one request in the frontend (HTTP, text), which takes one after the other
    records    of requests that ended, in order
    """

    def __init__(
        self,
        queue: EventQueue,
        frontend: SimFrontend,
        conductor: Conductor,
        cards: list[ModelCard],
        *,
        keeps_all: bool = True,
        start_s: float = 0.0,
        door_s: float = 0.0,
    ) -> None:
        self.records: list[RequestRecord] = []
        self.sent: list[tuple[Due, float]] = []
        self.num_refused = 0
        self._queue = queue
        self._frontend = frontend
        self._ledger: Ledger = frontend.ledger
        self._conductor = conductor
        self._cards = cards
        self._makers = [PromptMaker(card) for card in cards]
        self._keeps_all = keeps_all
        self._start_s = start_s
        self._door_s = door_s
        self._door_free_s = 0.0
        self._open: dict[str, _Open] = {}
        self._replies: dict[str, dict[int, list[int]]] = {}
        self._planned: list | None = None
        self._planned_s = float("inf")
        frontend.consumer = self
        self._plan()

    @property
    def is_done(self) -> bool:
        return self._conductor.is_done

    @property
    def num_abandoned_turns(self) -> int:
        return self._conductor.num_abandoned_turns

    @property
    def num_open(self) -> int:
        return len(self._open)

    def longest_wait_s(self) -> float:
        """Of requests that have no token yet."""
        now_s = self._queue.now()
        return max((now_s - one.sent_s for one in self._open.values() if not one.chunk_s), default=0.0)

    # -- sending --

    def _plan(self) -> None:
        due_s = self._conductor.next_due_s()
        if due_s is None or self._start_s + due_s >= self._planned_s:
            return
        self._queue.cancel(self._planned)
        self._planned_s = max(self._start_s + due_s, self._queue.now())
        self._planned = self._queue.at(self._planned_s, self._send_due)

    def _send_due(self) -> None:
        self._planned, self._planned_s = None, float("inf")
        for due in self._conductor.take_due(self._queue.now() - self._start_s + 1e-9):
            self._send(due)
        self._plan()

    def _send(self, due: Due) -> None:
        session, turn, now_s = due.session, due.turn, self._queue.now()
        if self._keeps_all:
            self.sent.append((due, now_s - self._start_s))
        is_alone = len(session.turns) == 1 and not session.children and session.parent_session_id is None
        maker, card = self._makers[session.model], self._cards[session.model]
        if is_alone:
            ids, hashes = maker.abstract(turn.prompt)
        else:
            ids, hashes = maker.real(turn.prompt, self._replies.get(session.session_id, {}))
            if self._frontend.core.watch is not None:  # somebody looks at them before the engine does
                hashes = maker.hash_blocks(ids)
        request = Request(
            request_id=f"{session.session_id}#{due.turn_index}",
            model=card.name,
            prompt_token_ids=ids,
            sampling=SamplingParams(max_tokens=turn.num_output_tokens, ignore_eos=True),
            arrival_s=now_s,
            block_hashes=hashes,
            session_id=session.session_id,
            parent_session_id=session.parent_session_id,
        )
        one = _Open(due, now_s, request, last_token_id=ids[-1] if ids else 0, answer=None if is_alone else [])
        self._open[request.request_id] = one
        if self._door_s == 0.0:
            self._submit(one)
            return
        self._door_free_s = max(now_s, self._door_free_s) + self._door_s
        self._queue.at(self._door_free_s, lambda: self._submit(one))

    def _submit(self, one: _Open) -> None:
        try:
            self._frontend.submit(one.request)
        except TokenmillError as error:
            self.num_refused += 1
            self._end(one, error=error.code)

    # -- hearing --

    def delivered(self, request_id: str, delta: TokenDelta) -> None:
        one = self._open.get(request_id)
        assert one is not None, f"{request_id}: tokens after the end, or of nobody's request"
        if delta.token_ids:
            self._take(one, delta)
        if delta.num_cached_tokens:
            one.num_cached_tokens = delta.num_cached_tokens
        if delta.finish_reason is not None:
            self._end(one, finish_reason=delta.finish_reason)

    def failed(self, request_id: str, error: TokenmillError) -> None:
        one = self._open.get(request_id)
        assert one is not None, f"{request_id} failed after its end: {error}"
        self._end(one, error=error.code)

    def _take(self, one: _Open, delta: TokenDelta) -> None:
        """Tokens count up: the next one is the last one plus one, or something was lost or doubled."""
        first, size = delta.token_ids[0], self._cards[one.due.session.model].vocab_size
        assert first == (one.last_token_id + 1) % size, f"{one.request.request_id}: {first} after {one.last_token_id}"
        one.last_token_id = delta.token_ids[-1]
        one.num_output_tokens += len(delta.token_ids)
        self._note_chunks(one, len(delta.token_ids))
        if one.answer is not None:
            one.answer += delta.token_ids

    def _note_chunks(self, one: _Open, num_tokens: int) -> None:
        """Tokens of steps that passed at once came evenly since the last one."""
        now_s = self._queue.now()
        if not one.chunk_s:
            one.chunk_s.append(now_s)
        elif self._keeps_all:
            last_s = one.chunk_s[-1]
            gap_s = (now_s - last_s) / num_tokens
            one.chunk_s += [last_s + gap_s * count for count in range(1, num_tokens)]
            one.chunk_s.append(now_s)

    def _end(self, one: _Open, *, finish_reason: FinishReason | None = None, error: str | None = None) -> None:
        now_s, request, due = self._queue.now(), one.request, one.due
        del self._open[request.request_id]
        is_ok = error is None and finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        if is_ok:
            asked = due.turn.num_output_tokens
            assert one.num_output_tokens == asked, f"{request.request_id}: {one.num_output_tokens} of {asked} tokens"
            if not self._keeps_all and one.chunk_s[-1] != now_s:
                one.chunk_s.append(now_s)
        record = RequestRecord(
            sent_s=one.sent_s,
            end_s=now_s,
            chunk_s=tuple(one.chunk_s),
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=one.num_cached_tokens,
            num_output_tokens=one.num_output_tokens,
            finish_reason=None if finish_reason is None else finish_reason.value,
            error=error if error is not None or is_ok else "abort",
            due_s=due.due_s + self._start_s,
            isl=len(request.prompt_token_ids),
            osl=due.turn.num_output_tokens,
            session_id=due.session.session_id if self._keeps_all else None,
            parent_session_id=due.session.parent_session_id,
            turn_index=due.turn_index,
        )
        self.records.append(record)
        if is_ok:
            outcome = Outcome(one.num_output_tokens, record.ttft_s, record.tpot_s, record.e2e_s)
            self._ledger.observe(request.request_id, outcome)
        self._remember(one, is_ok)
        self._conductor.ended(due.session.session_id, due.turn_index, now_s - self._start_s, is_ok=is_ok)
        self._plan()

    def _remember(self, one: _Open, is_ok: bool) -> None:
        """The answer is part of the session's later prompts."""
        session = one.due.session
        if one.answer is None:
            return
        if is_ok and one.due.turn_index + 1 < len(session.turns):
            self._replies.setdefault(session.session_id, {})[one.due.turn_index] = one.answer
        else:
            self._replies.pop(session.session_id, None)


def uniform_records(records: list[RequestRecord]) -> Mapping[str, float | None]:
    """ITL of records without their chunks is not known: the mean gap of each request stands for it."""
    from tokenmill.workloads.percentiles import spread

    return spread("itl_s", [tpot for record in records if record.is_ok and (tpot := record.tpot_s) is not None])
