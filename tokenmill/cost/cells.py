"""Sums of the bill by minute, model, tenant and session: what every question about cost is answered from.

Older minutes become hours, older hours days, and days drop their sessions, so that memory stays bounded; the journal
keeps what was said. Pure. Not responsible for: requests by name (cost/requests), files (cost/journal).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tokenmill.cost.tally import Amount, Tally
from tokenmill.cost.totals import COUNT_FIELDS, Line, TokenCounts, Totals

#: Sums of tenants, and of sessions, that are not (or no longer) kept apart.
OTHER_TENANTS = OTHER_SESSIONS = "(other)"
HOUR, DAY = 60, 24 * 60
_MINUTES_KEPT, _HOURS_KEPT = 3 * HOUR, 14 * DAY


class Owner(NamedTuple):
    """Whom a part of the bill belongs to; tenant and session None: nobody in particular, or not told."""

    model: str
    tenant: str | None = None
    session: str | None = None


class Cell:
    """A part of the bill that grows."""

    __slots__ = ("_tallies", "counts")

    def __init__(self) -> None:
        self._tallies: dict[Line, Tally] = {}
        self.counts = TokenCounts()

    def tally(self, line: Line) -> Tally:
        tally = self._tallies.get(line)
        if tally is None:
            tally = self._tallies[line] = Tally()
        return tally

    def lines(self) -> dict[Line, Tally]:
        """Those that have something, in the order of the bill."""
        return {line: self._tallies[line] for line in Line if line in self._tallies}

    def add(self, other: Cell) -> None:
        for line, tally in other._tallies.items():
            self.tally(line).add(tally)
        self.add_counts(other.counts)

    def add_counts(self, other: TokenCounts) -> None:
        for name in COUNT_FIELDS:
            by = getattr(other, name)
            if by:
                setattr(self.counts, name, getattr(self.counts, name) + by)

    def freeze(self) -> Totals:
        lines = {line: self._tallies[line].freeze() if line in self._tallies else Amount() for line in Line}
        return Totals(lines, replace(self.counts))

    def __bool__(self) -> bool:
        return self.counts != TokenCounts() or any(tally != Tally() for tally in self._tallies.values())


Slot = dict[Owner, Cell]


class CellBook:
    """
    max_tenants  names beyond it share one sum
    max_cells    beyond it the oldest slots drop their sessions

    What is added lies in `fresh` until it is settled into the sums. keeps_additions: somebody writes them down, so they
    are kept until `take_additions`.
    """

    def __init__(self, *, max_tenants: int, max_cells: int = 50_000) -> None:
        self._max_tenants = max_tenants
        self._max_cells = max_cells
        self._slots: dict[int, Slot] = {}
        self._fresh: dict[int, Slot] = {}
        self._by_model: dict[str, Cell] = {}
        self._tenants: set[str] = set()
        self._newest = 0
        self._additions: list[tuple[int, Owner, Cell]] = []
        self.keeps_additions = False

    def cell(self, minute: int, owner: Owner) -> Cell:
        """Where something of this minute is added. Ask again for each addition: it moves."""
        slot = self._fresh.get(minute)
        if slot is None:
            if minute > self._newest:
                self._newest = minute
                self._settle()
            slot = self._fresh[minute] = {}
        cell = slot.get(owner)
        if cell is None:
            cell = slot[owner] = Cell()
        return cell

    def tenant(self, name: str | None) -> str | None:
        """The name that this tenant's sums go by."""
        if name is None or name in self._tenants:
            return name
        if len(self._tenants) >= self._max_tenants:
            return OTHER_TENANTS
        self._tenants.add(name)
        return name

    def take_additions(self) -> list[tuple[int, Owner, Cell]]:
        """What was added since the last call, oldest first."""
        self._settle()
        additions, self._additions = self._additions, []
        return additions

    def _settle(self) -> None:
        """Take what is fresh into the sums."""
        added = [
            (minute, owner, cell)
            for minute in sorted(self._fresh)
            for owner, cell in self._fresh[minute].items()
            if cell
        ]
        self._fresh = {}
        for minute, owner, cell in added:
            self._join(self._slots.setdefault(self._start(minute), {}), owner, cell)
            self._by_model.setdefault(owner.model, Cell()).add(cell)
        self._roll_up()
        if self.keeps_additions:
            self._additions += added

    def load(self, minute: int, owner: Owner, cell: Cell) -> None:
        """A part of the bill of an earlier run."""
        self._newest = max(self._newest, minute)
        owner = owner._replace(tenant=self.tenant(owner.tenant))
        self._join(self._slots.setdefault(minute, {}), owner, cell)
        self._by_model.setdefault(owner.model, Cell()).add(cell)

    def all(self) -> Iterator[tuple[int, Owner, Cell]]:
        """Every part of the bill, oldest first; an owner may come more than once."""
        for book in (self._slots, self._fresh):
            for minute in sorted(book):
                yield from ((minute, owner, cell) for owner, cell in book[minute].items())

    def models(self) -> set[str]:
        return {*self._by_model, *(owner.model for slot in self._fresh.values() for owner in slot)}

    def totals(self, model: str) -> Totals:
        cell = Cell()
        if model in self._by_model:
            cell.add(self._by_model[model])
        for slot in self._fresh.values():
            for owner, part in slot.items():
                if owner.model == model:
                    cell.add(part)
        return cell.freeze()

    # -- bounded memory --

    def _join(self, slot: Slot, owner: Owner, cell: Cell) -> None:
        mine = slot.get(owner)
        if mine is None:
            mine = slot[owner] = Cell()
        mine.add(cell)

    def _start(self, minute: int) -> int:
        """Where the sums of this minute are by now: its own, its hour's or its day's."""
        age = self._newest - minute
        unit = 1 if age <= _MINUTES_KEPT else HOUR if age <= _HOURS_KEPT else DAY
        return minute - minute % unit

    def _roll_up(self) -> None:
        for minute in sorted(self._slots):
            if self._start(minute) == minute:
                continue
            target = self._slots.setdefault(self._start(minute), {})
            for owner, cell in self._slots.pop(minute).items():
                self._join(target, owner, cell)
        for minute in [m for m in self._slots if self._newest - m > _HOURS_KEPT]:
            self._drop_sessions(minute)
        excess = sum(map(len, self._slots.values())) - self._max_cells
        for minute in sorted(self._slots):
            if excess <= 0:
                break
            excess -= self._drop_sessions(minute)

    def _drop_sessions(self, minute: int) -> int:
        """Sessions of each tenant become one sum; returns how many cells that saved."""
        before = self._slots[minute]
        slot: Slot = {}
        for owner, cell in before.items():
            name = None if owner.session is None else OTHER_SESSIONS
            self._join(slot, owner._replace(session=name), cell)
        self._slots[minute] = slot
        return len(before) - len(slot)
