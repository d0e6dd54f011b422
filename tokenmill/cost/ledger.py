"""The ledger: every second of every worker process, with its dollars and joules, and what each request cost.

One per frontend, fed with the frames of core/wire. Pure: no clock, no sockets. It merges: the order in which frames
of different workers arrive does not matter, copies are dropped, frames may come after the exit they preceded.

The bill:  charged + overrun + idle + startup + unattributed + lost = process seconds.
Frames tile the time of a process by construction (engine and worker measure busy *and* idle), so the identity is
checked (`check_balance`), not enforced: nothing here is "the rest" except time lost at an exit.

Not responsible for: splitting a step (cost/shares), prices (cost/rates), limits on spending.
"""

from __future__ import annotations

import math

from tokenmill.core.slo import SLO
from tokenmill.core.wire import StepFrame
from tokenmill.cost.life import Balance, WorkerLife
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.requests import GroupTotals, Outcome, RequestBook, RequestCost
from tokenmill.cost.totals import NOTHING, TimeKind, TokenCounts, Totals

#: Workers remembered by name, so that an old Hello of one that is gone does not start a bill.
_MAX_NAMES = 10_000


class Ledger:
    """
    slo                  objectives that make tokens good; None: every request that completes is good
    max_finished         finished requests whose cost can still be asked for by name
    max_open             more open requests than a frontend ever has
    max_tenants          tenants with a sum of their own
    max_ended            ended processes that may still send late frames; older ones fold into the sums
    num_refused_frames   copies, frames with impossible times, and frames of processes not known (any more)
    num_unbilled_exits   processes that died before they could say what they were
    """

    def __init__(
        self,
        slo: SLO | None = None,
        *,
        max_finished: int = 4096,
        max_open: int = 65536,
        max_tenants: int = 1024,
        max_ended: int = 64,
    ) -> None:
        self.num_refused_frames = 0
        self.num_unbilled_exits = 0
        self._requests = RequestBook(slo, max_finished=max_finished, max_open=max_open, max_tenants=max_tenants)
        self._max_ended = max_ended
        self._lives: dict[tuple[str, int], WorkerLife] = {}
        self._ended: list[tuple[str, int]] = []
        self._newest: dict[str, int] = {}
        self._folded: dict[str, Totals] = {}
        self._folded_balance = Balance()

    # -- processes --

    def hello(self, worker_id: str, incarnation: int, model: str, rate: DeviceRate, started_s: float) -> None:
        """A process is there and its bill runs from started_s; again (after a lost connection): it goes on there.

        Its predecessor is over, whether or not its exit was reported. A new rate holds for frames from now on.
        """
        newest = self._newest.get(worker_id, -1)
        life = self._lives.get((worker_id, incarnation))
        if life is not None:
            life.rejoin(started_s, rate)
        elif incarnation > newest:
            before = self._lives.get((worker_id, newest))
            if before is not None and before.ended_s is None:
                self._end((worker_id, newest), before, started_s)
            self._lives[worker_id, incarnation] = WorkerLife(model, rate, started_s)
            self._newest[worker_id] = incarnation

    def exited(
        self,
        worker_id: str,
        incarnation: int,
        at_s: float,
        *,
        started_s: float | None = None,
        model: str | None = None,
        rate: DeviceRate | None = None,
    ) -> None:
        """A process ended; what it had not reported until then is lost.

        started_s, model, rate  for a process that died before its Hello; without model and rate it is billed like its
                                predecessor, and without any of these it is only counted
        """
        if (worker_id, incarnation) not in self._lives and incarnation > self._newest.get(worker_id, -1):
            before = self._lives.get((worker_id, self._newest.get(worker_id, -1)))
            if before is not None:
                model, rate = model or before.model, rate or before.rate
            if started_s is not None and model is not None and rate is not None:
                self.hello(worker_id, incarnation, model, rate, started_s)
        life = self._lives.get((worker_id, incarnation))
        if life is None:
            self.num_unbilled_exits += 1
            return
        self._end((worker_id, incarnation), life, at_s)

    def step(self, frame: StepFrame) -> None:
        """Book one frame: its deltas to their requests, the rest of its time by kind."""
        life = self._lives.get((frame.worker_id, frame.incarnation))
        if life is None or not life.accept(frame):
            self.num_refused_frames += 1
            return
        joules_per_s = _joules_per_s(frame)

        def metered(seconds: float) -> float | None:
            return None if joules_per_s is None else joules_per_s * seconds

        spent = {TimeKind.CHARGED: 0.0, TimeKind.OVERRUN: 0.0}
        for delta in frame.deltas:
            kind = self._requests.take(delta, life.model, life.rate, metered(delta.seconds))
            spent[kind] += delta.seconds
        spent[TimeKind.IDLE] = frame.idle_s
        spent[TimeKind.STARTUP] = frame.startup_s
        spent[TimeKind.UNATTRIBUTED] = frame.unattributed_s
        for kind, seconds in spent.items():
            if seconds > 0:
                life.charge(kind, seconds, metered(seconds))

    # -- requests --

    def begin(self, request_id: str, model: str, *, tenant: str | None = None, num_prompt_tokens: int = 0) -> None:
        """Announce a request: its tenant is known while it runs, and an id used before starts anew.

        Not announced, a request is opened by its first delta.
        """
        self._requests.begin(request_id, model, tenant, num_prompt_tokens)

    def finish(
        self,
        request_id: str,
        *,
        is_complete: bool = True,
        tenant: str | None = None,
        num_prompt_tokens: int | None = None,
    ) -> RequestCost:
        """The fleet is done with a request, however it ended: its final cost. Later deltas of it are overrun.

        is_complete                False: an error, or the client left
        tenant, num_prompt_tokens  where `begin` was not told; of n choices of one prompt only the first has its tokens
        """
        return self._requests.finish(
            request_id, is_complete=is_complete, tenant=tenant, num_prompt_tokens=num_prompt_tokens
        )

    def observe(self, request_id: str, outcome: Outcome) -> None:
        """What the client saw of a request, from the door that cut it at a stop string and clocked it.

        Before or after `finish`, and worth more: with objectives set, tokens are good only by this.
        """
        self._requests.observe(request_id, outcome)

    def request_cost(self, request_id: str) -> RequestCost:
        """So far; nothing for a request that no step has computed (or that is long forgotten)."""
        return self._requests.cost(request_id)

    # -- sums --

    def models(self) -> list[str]:
        counted = {*self._requests.counts_by_model, *self._folded}
        return sorted(counted | {life.model for life in self._lives.values()})

    def totals(self, model: str | None = None) -> Totals:
        """Frozen sums of one model, or of the fleet."""
        if model is None:
            return sum((self.totals(name) for name in self.models()), NOTHING)
        lives = (_life_totals(life) for life in self._lives.values() if life.model == model)
        counts = Totals(NOTHING.time, self._requests.counts_by_model.get(model, TokenCounts()))
        return sum(lives, counts + self._folded.get(model, NOTHING))

    def tenants(self) -> dict[str, GroupTotals]:
        return self._requests.tenants()

    def check_balance(self, now_s: float) -> Balance:
        """Whether the kinds add up to process seconds; `.is_balanced` allows 1 %."""
        return sum((life.balance(now_s) for life in self._lives.values()), self._folded_balance)

    # -- bounded memory --

    def _end(self, key: tuple[str, int], life: WorkerLife, at_s: float) -> None:
        if life.ended_s is None:
            self._ended.append(key)
        life.end(at_s)
        while len(self._ended) > self._max_ended:
            self._fold(self._ended.pop(0))

    def _fold(self, key: tuple[str, int]) -> None:
        life = self._lives.pop(key)
        self._folded[life.model] = self._folded.get(life.model, NOTHING) + _life_totals(life)
        self._folded_balance += life.balance(life.until_s)
        if len(self._newest) > _MAX_NAMES and self._newest.get(key[0]) == key[1]:
            del self._newest[key[0]]


def _life_totals(life: WorkerLife) -> Totals:
    return Totals(life.amounts(), TokenCounts(num_computed_tokens=life.stats.prompt_tokens_total))


def _joules_per_s(frame: StepFrame) -> float | None:
    """A meter cannot tell busy from idle within a frame: its reading is spread evenly over the frame's time."""
    covered_s = frame.busy_s + frame.idle_s + frame.startup_s
    is_usable = frame.joules is not None and math.isfinite(frame.joules) and frame.joules >= 0 and covered_s > 0
    return frame.joules / covered_s if is_usable and frame.joules is not None else None
