"""Which turn is due when: closed and open loop, gaps, sub-agents, as a pure state machine on the caller's clock.

    conductor = Conductor(sessions, ClosedLoop(8))
    while not conductor.is_done:
        for due in conductor.take_due(now_s): send it (due.session, due.turn_index)
        …wait until conductor.next_due_s() or something ends…: conductor.ended(session_id, turn_index, now_s, is_ok=…)

Real load and the twin drive the same object. Not responsible for: waiting, sending, measuring.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tokenmill.workloads.sessions import Session, Turn


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Keep `concurrency` top-level sessions alive; the first of them start evenly over `ramp_s`."""

    concurrency: int
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Start the n-th session at `times_s[n]`, whatever has come back; sessions beyond the list are not started."""

    times_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Due:
    session: Session
    turn_index: int
    due_s: float

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.turn_index]


@dataclass(slots=True)
class _Live:
    """Progress of one session: the next turn, and how many sub-agents it waits for."""

    session: Session
    root_id: str
    next_turn: int = 0
    num_waited_for: int = 0
    is_abandoned: bool = False


@dataclass(slots=True)
class Conductor:
    """
    sessions      taken lazily, so it may be endless (then max_turns or until_s must end it)
    max_turns     send no more than so many
    until_s       start nothing due at or after this time; what is in flight ends by itself
    """

    sessions: Iterable[Session]
    loop: ClosedLoop | OpenLoop
    max_turns: int | None = None
    until_s: float | None = None
    num_abandoned_turns: int = field(default=0, init=False)
    num_sent: int = field(default=0, init=False)
    _queue: list[tuple[float, int, str]] = field(default_factory=list, init=False)
    _live: dict[str, _Live] = field(default_factory=dict, init=False)
    _order: int = field(default=0, init=False)
    _num_started: int = field(default=0, init=False)
    _in_flight: set[tuple[str, int]] = field(default_factory=set, init=False)
    _source: Iterator[Session] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._source = iter(self.sessions)
        first = self.loop.concurrency if isinstance(self.loop, ClosedLoop) else 1
        for slot in range(first):
            spread_s = self.loop.ramp_s * slot / first if isinstance(self.loop, ClosedLoop) else 0.0
            self._start_next(spread_s)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def is_done(self) -> bool:
        return not self._in_flight and not self._queue

    def next_due_s(self) -> float | None:
        """When `take_due` will next have something; None: only an ending can change anything."""
        return self._queue[0][0] if self._queue else None

    def take_due(self, now_s: float) -> list[Due]:
        """Turns to send now, each told once."""
        due: list[Due] = []
        while self._queue and self._queue[0][0] <= now_s:
            if self._is_over(self._queue[0][0]):
                self._queue.clear()
                break
            due_s, _, session_id = heapq.heappop(self._queue)
            live = self._live[session_id]
            due.append(Due(live.session, live.next_turn, due_s))
            self._in_flight.add((session_id, live.next_turn))
            self.num_sent += 1
            if isinstance(self.loop, OpenLoop) and live.next_turn == 0 and session_id == live.root_id:
                self._start_next(due_s)
        if self._queue and self._is_over(self._queue[0][0]):
            self._queue.clear()
        return due

    def ended(self, session_id: str, turn_index: int, now_s: float, *, is_ok: bool) -> None:
        """A turn has its answer, or failed: then the rest of its session is abandoned and counted."""
        self._in_flight.remove((session_id, turn_index))
        live = self._live[session_id]
        live.next_turn = turn_index + 1
        if not is_ok:
            self._abandon(live)
        else:
            self._start_children(live, turn_index, now_s)
        self._go_on(live, now_s)

    def _go_on(self, live: _Live, now_s: float) -> None:
        """Its next turn, or its end and what waits for that."""
        session = live.session
        if live.num_waited_for:
            return
        if live.next_turn < len(session.turns):
            self._push(now_s + session.turns[live.next_turn].gap_s, session.session_id)
            return
        del self._live[session.session_id]
        parent = self._live.get(session.parent_session_id) if session.parent_session_id else None
        if parent is not None and session.session_id != live.root_id:
            parent.num_waited_for -= 1
            self._go_on(parent, now_s)
        elif isinstance(self.loop, ClosedLoop):
            self._start_next(now_s)

    def _abandon(self, live: _Live) -> None:
        turns, spawned_from = len(live.session.turns), live.next_turn - 1
        unborn = [child for child in live.session.children if child.after_turn >= spawned_from]
        lost = sum(len(member.turns) for child in unborn for member in child.family())
        self.num_abandoned_turns += turns - live.next_turn + lost
        live.next_turn, live.is_abandoned = turns, True

    def _start_children(self, live: _Live, turn_index: int, now_s: float) -> None:
        for child in live.session.children:
            if child.after_turn == turn_index:
                live.num_waited_for += 1
                self._live[child.session_id] = _Live(child, live.root_id)
                self._push(now_s + child.turns[0].gap_s, child.session_id)

    def _start_next(self, now_s: float) -> None:
        """Queue the first turn of the next top-level session, if there is one and its time is known."""
        assert self._source is not None
        if isinstance(self.loop, OpenLoop):
            if self._num_started >= len(self.loop.times_s):
                return
            now_s = self.loop.times_s[self._num_started]
        session = next(self._source, None)
        if session is None:
            return
        self._num_started += 1
        self._live[session.session_id] = _Live(session, session.session_id)
        self._push(now_s + session.turns[0].gap_s, session.session_id)

    def _push(self, due_s: float, session_id: str) -> None:
        """Ties go in the order they became known."""
        if self._is_over(due_s):
            return
        self._order += 1
        heapq.heappush(self._queue, (due_s, self._order, session_id))

    def _is_over(self, due_s: float) -> bool:
        if self.max_turns is not None and self.num_sent >= self.max_turns:
            return True
        return self.until_s is not None and due_s >= self.until_s
