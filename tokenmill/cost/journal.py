"""The ledger as lines of JSON: what was added to the bill since the last batch, and how far each process is billed.

    {"kind": "run", ...}      a frontend of this deployment began to write
    {"kind": "cell", ...}     added to the sums of one minute and owner: per line the fields of tally.Amount, in order
    {"kind": "life", ...}     a worker process, billed up to `until` (ticks of its host's monotonic clock)
    {"kind": "parent", ...}   a session and the session that started it
    {"kind": "request", ...}  a request that ended; for people: its costs are in the cells already
    {"kind": "end"}           the batch is whole; lines behind the last one are of a writer that was cut off

Sums are of whole numbers, so a file added up gives the very bill. Pure. Not responsible for: files (api/ledger_file).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.cost.cells import Cell, Owner
from tokenmill.cost.ledger import Ledger, LifeKey
from tokenmill.cost.life import WorkerLife
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.requests import Entry
from tokenmill.cost.tally import AMOUNT_FIELDS, Amount
from tokenmill.cost.totals import COUNT_FIELDS, Line

VERSION = 1
Row = dict[str, Any]


@dataclass(slots=True)
class Journal:
    """What a file says. lives: of its last run only; they cannot have outlived an earlier one's deployment.

    num_bytes  up to the end of the last whole batch
    """

    run: str | None = None
    epoch_s: float | None = None
    cells: list[tuple[int, Owner, Cell]] = field(default_factory=list)
    parents: list[tuple[str, str]] = field(default_factory=list)
    lives: dict[LifeKey, WorkerLife] = field(default_factory=dict)
    requests: list[Row] = field(default_factory=list)
    num_bytes: int = 0


# -- writing --


def run_row(run: str, epoch_s: float) -> str:
    return _line({"kind": "run", "version": VERSION, "run": run, "epoch_s": epoch_s}) + _line({"kind": "end"})


class JournalWriter:
    """Turns what a ledger gained since the last call into one batch."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        ledger.keep_additions()
        self._lives: dict[LifeKey, Row] = {}
        self._parents: dict[str, str] = {}
        self._ended: list[tuple[str, Entry]] = []

    def batch(self, *, is_last: bool = False) -> str:
        """ "" when nothing happened. Requests follow one batch after their end, when the door has told its part."""
        rows = [_cell_row(*added) for added in self._ledger.take_additions()]
        rows += self._new_parents(row["session"] for row in rows if row["session"] is not None)
        ended, self._ended = self._ended, self._ledger.take_ended()
        if is_last:
            ended, self._ended = ended + self._ended, []
        rows += [_request_row(request_id, entry) for request_id, entry in ended]
        rows += self._moved_lives()
        return "".join(map(_line, [*rows, {"kind": "end"}])) if rows else ""

    def _new_parents(self, sessions: Iterable[str]) -> Iterator[Row]:
        for session in sessions:
            parent = self._ledger.parent_session(session)
            if parent is not None and self._parents.get(session) != parent:
                self._parents[session] = parent
                yield {"kind": "parent", "session": session, "parent": parent}

    def _moved_lives(self) -> Iterator[Row]:
        now = {key: _life_row(key, life) for key, life in self._ledger.lives().items()}
        yield from (row for key, row in now.items() if self._lives.get(key) != row)
        self._lives = now


def _line(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n"


def _cell_row(minute: int, owner: Owner, cell: Cell) -> Row:
    lines = {line.value: [getattr(tally, name) for name in AMOUNT_FIELDS] for line, tally in cell.lines().items()}
    counts = {name: value for name in COUNT_FIELDS if (value := getattr(cell.counts, name))}
    return {"kind": "cell", "minute": minute, **owner._asdict(), "lines": lines, "counts": counts}


def _life_row(key: LifeKey, life: WorkerLife) -> Row:
    return {
        "kind": "life",
        "worker_id": key[0],
        "incarnation": key[1],
        "model": life.model,
        "started": life.started,
        "until": life.until,
        "ended": life.ended,
        "explained": life.explained,
        "lost": life.lost,
        "usd_per_hour": life.rate.usd_per_hour,
        "watts": life.rate.watts,
        "num_devices": life.rate.num_devices,
        "is_estimated": life.rate.is_estimated,
        "source": life.rate.source,
    }


def _request_row(request_id: str, entry: Entry) -> Row:
    cost = entry.cost()
    return {
        "kind": "request",
        "request_id": request_id,
        **entry.owner._asdict(),
        "parent_session": entry.parent,
        "is_complete": entry.is_complete,
        "usd": cost.usd,
        "seconds": cost.seconds,
        "seconds_by_line": {line.value: seconds for line, seconds in cost.by_line.items()},
        "joules": cost.joules,
        "energy_source": cost.energy_source.value,
        "counts": {name: value for name in COUNT_FIELDS if (value := getattr(entry.counts, name))},
    }


# -- reading --


def read_journal(lines: Iterable[bytes], name: str) -> Journal:
    """All whole batches; ConfigError with line number and fault for a line that is broken and no torn end.

    Only its last line can be torn, in a batch that was cut off. Anything else is no ledger: a caller that cuts off what
    is behind the last whole batch must never do that to somebody else's file.
    """
    journal, batch = Journal(), list[tuple[int, Row]]()
    num_bytes = 0
    for number, line in enumerate(lines, 1):
        num_bytes += len(line)
        where = f"ledger {name}, line {number}"
        if not line.endswith(b"\n"):
            # Only a file's last line has no end.
            if not batch and not journal.num_bytes and not _is_torn_start(line):
                raise _broken(f"{where}: is no line of a ledger: {line[:60]!r}")
        elif (row := _parse(line, where))["kind"] != "end":
            batch.append((number, row))
        else:
            for at, one in batch:
                _take(journal, one, f"ledger {name}, line {at}")
            batch, journal.num_bytes = [], num_bytes
    return journal


def _is_torn_start(line: bytes) -> bool:
    """Of the first line that a frontend writes (`run_row`)."""
    start = b'{"kind":"run",'
    return line.startswith(start) or start.startswith(line)


def _parse(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:  # of JSON and of UTF-8
        raise _broken(f"{where}: is no JSON ({error})") from None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        raise _broken(f"{where}: is no object with a kind: {line[:60]!r}")
    if row["kind"] not in (*_TAKERS, "end"):
        raise _broken(f"{where}: kind {row['kind']!r} is none of {', '.join(_TAKERS)}")
    return row


def _take(journal: Journal, row: Row, where: str) -> None:
    try:
        _TAKERS[row["kind"]](journal, row)
    except KeyError as error:
        raise _broken(f"{where}: has no {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise _broken(f"{where}: {error}") from None


def _broken(fault: str) -> ConfigError:
    return ConfigError(f"{fault}: mend or delete that line, or move the file away to begin a new one")


def _take_run(journal: Journal, row: Row) -> None:
    if row["version"] != VERSION:
        raise ValueError(f"version {row['version']!r} is not the one that is read here ({VERSION})")
    if row["run"] != journal.run:
        journal.lives = {}
    journal.run, journal.epoch_s = str(row["run"]), float(row["epoch_s"])


def _take_cell(journal: Journal, row: Row) -> None:
    cell = Cell()
    for name, values in row["lines"].items():
        if len(values) != len(AMOUNT_FIELDS):
            raise ValueError(f"line {name!r} has {len(values)} figures; {len(AMOUNT_FIELDS)} are expected")
        cell.tally(Line(name)).add(Amount(*map(_whole, values)))
    for name, value in row["counts"].items():
        if name not in COUNT_FIELDS:
            raise ValueError(f"count {name!r} is unknown")
        setattr(cell.counts, name, _whole(value))
    owner = Owner(_text(row["model"]), _name(row["tenant"]), _name(row["session"]))
    journal.cells.append((_whole(row["minute"]), owner, cell))


def _take_life(journal: Journal, row: Row) -> None:
    rate = DeviceRate(
        float(row["usd_per_hour"]),
        float(row["watts"]),
        num_devices=_whole(row["num_devices"]),
        is_estimated=bool(row["is_estimated"]),
        source=_text(row["source"]),
    )
    life = WorkerLife(_text(row["model"]), rate, _whole(row["started"]))
    life.take_over(_whole(row["until"]), _whole(row["explained"]))
    life.lost = _whole(row["lost"])
    life.ended = None if row["ended"] is None else _whole(row["ended"])
    journal.lives[_text(row["worker_id"]), _whole(row["incarnation"])] = life


def _take_parent(journal: Journal, row: Row) -> None:
    journal.parents.append((_text(row["session"]), _text(row["parent"])))


def _take_request(journal: Journal, row: Row) -> None:
    _text(row["request_id"])
    journal.requests.append(row)


_TAKERS = {
    "run": _take_run,
    "cell": _take_cell,
    "life": _take_life,
    "parent": _take_parent,
    "request": _take_request,
}


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _name(value: Any) -> str | None:
    return None if value is None else _text(value)
