"""The ledger: every second of every worker process, with its dollars and joules, and what each request cost.

One per frontend, fed with the frames of core/wire. Pure: no clock, no sockets. It merges: the order in which frames
of different workers arrive does not matter, copies are dropped, frames may come after the exit they preceded.

The bill: the lines of cost/totals add up to process seconds, in whole ticks, and to dollars in whole units. Frames
tile the time of a process by construction (engine and worker measure busy *and* idle), so the identity is checked
(`check_balance`), not enforced: nothing here is "the rest" except time lost at an exit.

Not responsible for: splitting a step (cost/shares), prices (cost/rates), limits on spending (cost/budgets).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from tokenmill.core.slo import SLO
from tokenmill.core.ticks import to_ticks
from tokenmill.core.wire import StepFrame
from tokenmill.cost.cells import Cell, CellBook, Owner
from tokenmill.cost.life import Balance, WorkerLife, covered_s
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.requests import Entry, Outcome, RequestBook, RequestCost
from tokenmill.cost.spending import Spending
from tokenmill.cost.tally import money_of
from tokenmill.cost.totals import NOTHING, OWNED, Line, Totals

#: Workers remembered by name, so that an old Hello of one that is gone does not start a bill.
_MAX_NAMES = 10_000
#: Parts of a frame may differ from its whole by rounding, not by more.
_ROUNDING_S = 1e-6
_NANO = 10**9

LifeKey = tuple[str, int]


class Ledger:
    """
    slo                  objectives that make tokens good; None: every request that completes is good
    epoch_s              wall time of second 0 of the frames' clock; fixed, so that a wall clock that is set back
                         moves nothing
    max_finished         finished requests whose cost can still be asked for by name
    max_open             more open requests than a frontend ever has
    max_tenants          tenants with a sum of their own
    max_ended            ended processes that may still send late frames; older ones only count in the sums
    num_refused_frames   copies, frames with impossible times, and frames of processes not known (any more)
    num_unbilled_exits   processes that died before they could say what they were
    """

    def __init__(
        self,
        slo: SLO | None = None,
        *,
        epoch_s: float = 0.0,
        max_finished: int = 4096,
        max_open: int = 65536,
        max_tenants: int = 1024,
        max_ended: int = 64,
    ) -> None:
        self.slo = slo
        self.num_refused_frames = 0
        self.num_unbilled_exits = 0
        self.spending = Spending()
        self._epoch_s = epoch_s
        self._cells = CellBook(max_tenants=max_tenants)
        self._requests = RequestBook(slo, self._cell, max_finished=max_finished, max_open=max_open)
        self._max_ended = max_ended
        self._lives: dict[LifeKey, WorkerLife] = {}
        self._ended: list[LifeKey] = []
        self._newest: dict[str, int] = {}
        self._folded_balance = Balance()
        self._minute = 0
        self._is_heir = False

    # -- processes --

    def hello(
        self,
        worker_id: str,
        incarnation: int,
        model: str,
        rate: DeviceRate,
        started_s: float,
        *,
        process_started_s: float | None = None,
    ) -> None:
        """A process is there and its bill runs from started_s; again (after a lost connection): it goes on there.

        Its predecessor is over, whether or not its exit was reported. A new rate holds for frames from now on.

        process_started_s  of a process that is older than its bill here, since an earlier frontend heard of the time
                           before. Where that one's bill goes on here and has nothing of this process, that time is lost
        """
        key, newest = (worker_id, incarnation), self._newest.get(worker_id, -1)
        life = self._lives.get(key)
        self._pass(started_s)
        if life is not None:
            gap = life.rejoin(to_ticks(started_s), rate)
            self._book_unowned(life, Line.LOST, gap)
        elif incarnation > newest:
            before = self._lives.get((worker_id, newest))
            if before is not None and before.ended is None:
                self._end((worker_id, newest), before, to_ticks(started_s))
            born_s = min(started_s, process_started_s) if self._is_heir and process_started_s is not None else started_s
            life = WorkerLife(model, rate, to_ticks(born_s))
            self._book_unowned(life, Line.LOST, life.rejoin(to_ticks(started_s), rate))
            self._lives[key] = life
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
                model, rate = model or before.model, before.rate
            if started_s is not None and model is not None and rate is not None:
                self.hello(worker_id, incarnation, model, rate, started_s)
        life = self._lives.get((worker_id, incarnation))
        if life is None:
            self.num_unbilled_exits += 1
            return
        self._pass(at_s)
        self._end((worker_id, incarnation), life, to_ticks(at_s))

    def reprice(self, rate: DeviceRate) -> None:
        """All processes cost this much from their next frame on."""
        for life in self._lives.values():
            life.rate, life.units = rate, rate.units

    def step(self, frame: StepFrame) -> None:
        """Book one frame: its deltas to their requests, the rest of its time by line."""
        life = self._lives.get((frame.worker_id, frame.incarnation))
        if life is None or not life.accept(frame):
            self.num_refused_frames += 1
            return
        self._pass(frame.until_s)
        unowned = (
            (Line.IDLE, frame.idle_s),
            (Line.STARTUP, frame.startup_s),
            (Line.UNATTRIBUTED, frame.unattributed_s),
        )
        parts = _whole_parts([*(d.seconds for d in frame.deltas), *(s for _, s in unowned)], covered_s(frame))
        joules = _split_joules(frame, parts)
        spent: dict[Owner, int] = {}
        for delta, ticks, nj in zip(frame.deltas, parts, joules, strict=False):
            owner = self._requests.take(delta, ticks, life.model, life.units, nj)
            spent[owner] = spent.get(owner, 0) + ticks
        for owner, ticks in spent.items():
            self.spending.add(owner, ticks * life.units.pico_usd_per_hour)
        for (line, _), ticks, nj in zip(unowned, parts[-3:], joules[-3:], strict=True):
            if ticks or nj:
                self._book_unowned(life, line, ticks, nj)
        life.explained += sum(parts)
        self._settle_lost(life)

    # -- requests --

    def begin(
        self,
        request_id: str,
        model: str,
        *,
        tenant: str | None = None,
        session: str | None = None,
        parent_session: str | None = None,
        num_prompt_tokens: int = 0,
    ) -> None:
        """Announce a request: whose it is, and its prompt (0 for all but the first of n choices of one prompt).

        An id used before starts anew. Not announced, a request is opened by its first delta and is nobody's.
        """
        payer = Owner(model, tenant, session)
        owner = payer._replace(tenant=self._cells.tenant(tenant))
        if session is not None and parent_session is not None:
            self.spending.adopt(session, parent_session)
        self._requests.begin(request_id, owner, payer=payer, parent=parent_session, num_prompt_tokens=num_prompt_tokens)

    def finish(self, request_id: str, *, is_complete: bool = True) -> RequestCost:
        """The fleet is done with a request, however it ended: its final cost. Later deltas of it are overrun.

        is_complete  False: an error, or the client left
        """
        return self._requests.finish(request_id, is_complete=is_complete)

    def observe(self, request_id: str, outcome: Outcome) -> None:
        """What the client saw of a request, from the door that cut it at a stop string and clocked it.

        Before or after `finish`, and worth more: with objectives set, tokens are good only by this.
        """
        self._requests.observe(request_id, outcome)

    def request_cost(self, request_id: str) -> RequestCost:
        """So far; nothing for a request that no step has computed (or that is long forgotten)."""
        return (self._requests.get(request_id) or Entry(Owner(""))).cost()

    def request(self, request_id: str) -> Entry | None:
        return self._requests.get(request_id)

    def store(self, model: str, usd: float, *, tenant: str | None = None, session: str | None = None) -> None:
        """Blocks kept on a tier that is paid for apart from the devices: what keeping them cost since the last time."""
        payer, money = Owner(model, tenant, session), money_of(usd)
        self._cell(payer._replace(tenant=self._cells.tenant(tenant))).tally(Line.STORAGE).money += money
        self.spending.add(payer, money)

    # -- sums --

    def models(self) -> list[str]:
        return sorted(self._cells.models() | {life.model for life in self._lives.values()})

    def totals(self, model: str | None = None) -> Totals:
        """Frozen sums of one model, or of the fleet."""
        if model is None:
            return sum((self.totals(name) for name in self.models()), NOTHING)
        return self._cells.totals(model)

    def cells(self) -> Iterator[tuple[int, Owner, Cell]]:
        """Every part of the bill: (first minute of its sum, owner, sum), oldest first. To be read, not changed."""
        return self._cells.all()

    def parent_session(self, session: str) -> str | None:
        return self.spending.parent(session)

    def check_balance(self, now_s: float) -> Balance:
        """Whether the lines add up to process seconds; `.is_balanced` allows 1 %."""
        return sum((life.balance(to_ticks(now_s)) for life in self._lives.values()), self._folded_balance)

    # -- the journal --

    def keep_additions(self) -> None:
        """From now on somebody takes what is added to the bill."""
        self._cells.keeps_additions = True

    def take_additions(self) -> list[tuple[int, Owner, Cell]]:
        """What was added to the bill since the last call."""
        return self._cells.take_additions()

    def lives(self) -> dict[LifeKey, WorkerLife]:
        """Processes that run or may still send late frames. To be read, not changed."""
        return dict(self._lives)

    def take_ended(self) -> list[tuple[str, Entry]]:
        """Requests that ended since the last call."""
        return self._requests.take_ended()

    def restore_cells(self, rows: Iterable[tuple[int, Owner, Cell]]) -> None:
        """Parts of the bill that an earlier frontend wrote down; they count in every sum, and in what was spent."""
        for minute, owner, cell in rows:
            self._cells.load(minute, owner, cell)
            self.spending.add(owner, sum(tally.money for line, tally in cell.lines().items() if line in OWNED))

    def restore_parents(self, pairs: Iterable[tuple[str, str]]) -> None:
        for session, parent in pairs:
            self.spending.adopt(session, parent)

    def restore_lives(self, lives: Iterable[tuple[LifeKey, WorkerLife]]) -> None:
        """Processes of this very deployment that an earlier frontend billed: they go on from where it stopped."""
        self._is_heir = True
        for (worker_id, incarnation), life in lives:
            self._lives[worker_id, incarnation] = life
            self._newest[worker_id] = max(incarnation, self._newest.get(worker_id, -1))
            if life.ended is not None:
                self._ended.append((worker_id, incarnation))
        self._fold_old()

    # -- inside --

    def _cell(self, owner: Owner) -> Cell:
        return self._cells.cell(self._minute, owner)

    def _pass(self, now_s: float) -> None:
        """The newest minute that anything was heard of; late frames are booked where we are."""
        if math.isfinite(now_s):
            self._minute = max(self._minute, int((self._epoch_s + now_s) // 60))

    def _book_unowned(self, life: WorkerLife, line: Line, ticks: int, measured_nj: int | None = None) -> None:
        if ticks or measured_nj:
            self._cell(Owner(life.model)).tally(line).charge(ticks, life.units, measured_nj)

    def _settle_lost(self, life: WorkerLife) -> None:
        if life.ended is not None:
            self._book_unowned(life, Line.LOST, life.settle_lost())

    def _end(self, key: LifeKey, life: WorkerLife, at: int) -> None:
        if life.ended is None:
            self._ended.append(key)
        life.ended = at
        self._settle_lost(life)
        self._fold_old()

    def _fold_old(self) -> None:
        while len(self._ended) > self._max_ended:
            key = self._ended.pop(0)
            life = self._lives.pop(key)
            self._folded_balance += life.balance(life.until)
            if len(self._newest) > _MAX_NAMES and self._newest.get(key[0]) == key[1]:
                del self._newest[key[0]]


def _whole_parts(seconds: Sequence[float], whole_s: float) -> list[int]:
    """Ticks of each part of a frame. Parts that make up the whole make it up exactly; where they do not, that stays."""
    ticks: list[int] = []
    done_s, done = 0.0, 0
    for part in seconds:
        if not part:
            ticks.append(0)
            continue
        done_s += part
        upto = to_ticks(done_s)
        ticks.append(upto - done)
        done = upto
    if ticks and abs(done_s - whole_s) <= _ROUNDING_S:
        largest = max(range(len(ticks)), key=ticks.__getitem__)
        ticks[largest] = max(0, ticks[largest] + to_ticks(whole_s) - done)
    return ticks


def _split_joules(frame: StepFrame, parts: Sequence[int]) -> list[int | None]:
    """A meter cannot tell busy from idle within a frame: its reading is spread evenly over the frame's time.

    In nanojoules; None: no meter, or one that is broken.
    """
    joules = frame.joules
    if joules is None or not math.isfinite(joules) or joules < 0 or not any(parts):
        return [None] * len(parts)
    whole = sum(parts)
    total, done, dealt, shares = round(joules * _NANO), 0, 0, []
    for ticks in parts:
        done += ticks
        upto = total * done // whole
        shares.append(upto - dealt)
        dealt = upto
    return list(shares)
