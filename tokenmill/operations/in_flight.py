"""The requests inside the frontend, from admission to their one end: who has them, since when, how often tried.

Pure. Not responsible for the load of workers (fleet.py) or for what is decided about a request (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from tokenmill.core.request import Request, TokenDelta
from tokenmill.operations.admission import ModelLoad


@dataclass(slots=True)
class Flight:
    """
    deadline_s       when its time is over, whatever it is doing
    worker_id        who has it; None while it waits for a worker to come back
    send_index       the how-manyth request of that worker's life it is; earlier frames can only mean an earlier
                     request of the same id
    attempts         workers it was given to
    wait_until_s     while it waits: when waiting is given up
    has_started      a token (or prompt logprobs) went out to the consumer
    token_ids        the tokens that went out: another worker goes on behind them
    is_pending       its prompt tokens count as pending
    held             deltas without anything to show yet (prompt chunks), merged; they go out with the first token
    """

    request: Request
    deadline_s: float
    worker_id: str | None = None
    send_index: int = 0
    attempts: int = 0
    wait_until_s: float | None = None
    has_started: bool = False
    is_pending: bool = True
    held: TokenDelta | None = None
    token_ids: list[int] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_pending_tokens(self) -> int:
        return len(self.request.prompt_token_ids) if self.is_pending else 0


class InFlight:
    """Every request is in here exactly from `add` to `remove`, in order of arrival."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._by_worker: dict[str, dict[str, Flight]] = {}
        self._loads: dict[str, list[int]] = {}
        self._waiting: set[str] = set()

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    def get(self, request_id: str) -> Flight | None:
        return self._flights.get(request_id)

    def load(self, model: str) -> ModelLoad:
        return ModelLoad(*self._loads.get(model, (0, 0)))

    def of_worker(self, worker_id: str) -> list[Flight]:
        return list(self._by_worker.get(worker_id, {}).values())

    def waiting(self, model: str | None = None) -> list[Flight]:
        """Those that wait for a worker to come back."""
        if not self._waiting:
            return []
        return [f for f in self if f.wait_until_s is not None and (model is None or f.request.model == model)]

    def overdue(self, now_s: float) -> list[Flight]:
        """Those whose time is over. All get the same time, so a later one is never due before an earlier one."""
        return list(takewhile(lambda flight: flight.deadline_s <= now_s, self))

    def add(self, flight: Flight) -> None:
        assert flight.request_id not in self._flights, f"duplicate request id {flight.request_id}"
        self._flights[flight.request_id] = flight
        load = self._loads.setdefault(flight.request.model, [0, 0])
        load[0] += 1
        load[1] += flight.num_pending_tokens

    def place(self, flight: Flight, worker_id: str) -> None:
        flight.worker_id, flight.wait_until_s = worker_id, None
        self._waiting.discard(flight.request_id)
        flight.attempts += 1
        self._by_worker.setdefault(worker_id, {})[flight.request_id] = flight

    def wait(self, flight: Flight, until_s: float) -> None:
        """Nobody has it, and nobody can take it yet."""
        flight.wait_until_s = until_s
        self._waiting.add(flight.request_id)

    def unplace(self, flight: Flight) -> None:
        """Its worker has it no longer."""
        if flight.worker_id is not None:
            del self._by_worker[flight.worker_id][flight.request_id]
            flight.worker_id = None
            flight.held = None

    def reopen(self, flight: Flight) -> None:
        """Its prompt is to be computed once more."""
        if not flight.is_pending:
            flight.is_pending = True
            self._loads[flight.request.model][1] += flight.num_pending_tokens

    def start(self, flight: Flight) -> None:
        """Something of its output went out."""
        if flight.is_pending:
            self._loads[flight.request.model][1] -= flight.num_pending_tokens
            flight.is_pending = False
        flight.has_started = True

    def remove(self, flight: Flight) -> None:
        self.unplace(flight)
        self._waiting.discard(flight.request_id)
        load = self._loads[flight.request.model]
        load[0] -= 1
        load[1] -= flight.num_pending_tokens
        if load == [0, 0]:
            del self._loads[flight.request.model]
        del self._flights[flight.request_id]

    def check_integrity(self) -> None:
        """Assert that the counts are those of the requests that are here."""
        for model, load in self._loads.items():
            mine = [f for f in self if f.request.model == model]
            assert load == [len(mine), sum(f.num_pending_tokens for f in mine)], f"{model}: {load}"
        placed = {f.request_id for f in self if f.worker_id is not None}
        assert placed == {i for of in self._by_worker.values() for i in of}, "placements differ"
        assert self._waiting == {f.request_id for f in self if f.wait_until_s is not None}, "who waits differs"
        for flight in self:
            assert (flight.worker_id is None) == (flight.wait_until_s is not None), f"{flight}"
