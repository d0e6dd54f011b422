"""What goes wrong, and when: from a script or at random from a seed. Data and draws; twin.py makes it happen.

A script is a JSON list of objects: {"at_s": 1.5, "kind": "crash", "worker": "worker-0", "seconds": 2.0, "amount": 3.0}.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from tokenmill.core.errors import ConfigError


class FaultKind(StrEnum):
    CRASH = "crash"  # the process ends at once
    HANG = "hang"  # it neither computes nor answers for `seconds`
    SLOW = "slow"  # its steps take `amount` times as long for `seconds`
    LOSS = "loss"  # `amount` of its messages are lost for `seconds`
    COPIES = "copies"  # `amount` of its messages come twice
    LATE = "late"  # half of its messages are up to `amount` seconds late, out of order
    PARTITION = "partition"  # nothing reaches it or leaves it
    DISK = "disk"  # its engine fails, and so does every start, for `seconds`
    SKEW = "skew"  # its host's clock is `amount` seconds off from its next start on, and jumps now, if forward
    PRICE = "price"  # a device hour costs `amount` times as much from now on


@dataclass(frozen=True, slots=True)
class Fault:
    """worker: whom it hits; None: nobody in particular."""

    at_s: float
    kind: FaultKind
    worker: str | None = None
    seconds: float = 0.0
    amount: float = 0.0

    @property
    def end_s(self) -> float:
        return self.at_s + self.seconds


#: kind -> ranges of (seconds, amount) at random.
_RANGES: dict[FaultKind, tuple[tuple[float, float], tuple[float, float]]] = {
    FaultKind.CRASH: ((0, 0), (0, 0)),
    FaultKind.HANG: ((0.1, 8.0), (0, 0)),
    FaultKind.SLOW: ((0.5, 5.0), (1.5, 20.0)),
    FaultKind.LOSS: ((0.2, 3.0), (0.02, 0.5)),
    FaultKind.COPIES: ((0.2, 3.0), (0.05, 0.5)),
    FaultKind.LATE: ((0.2, 3.0), (1e-3, 0.3)),
    FaultKind.PARTITION: ((0.1, 8.0), (0, 0)),
    FaultKind.DISK: ((0.1, 3.0), (0, 0)),
    FaultKind.SKEW: ((0, 0), (-5.0, 5.0)),
    FaultKind.PRICE: ((0, 0), (0.5, 3.0)),
}


def random_faults(rng: Random, workers: Sequence[str], num_faults: int, until_s: float) -> list[Fault]:
    """In order of time; each is over some seconds after `until_s` at the latest."""
    faults = []
    for _ in range(num_faults):
        kind = rng.choice(list(FaultKind))
        seconds, amount = (rng.uniform(*bounds) for bounds in _RANGES[kind])
        worker = None if kind is FaultKind.PRICE else rng.choice(workers)
        faults.append(Fault(rng.uniform(0.0, until_s), kind, worker, seconds, amount))
    return sorted(faults, key=lambda fault: fault.at_s)


def read_faults(path: Path, workers: Sequence[str]) -> list[Fault]:
    """ConfigError names the entry that is wrong."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"fault script {str(path)!r} cannot be read: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"fault script {str(path)!r} must hold a list of faults")
    return sorted((_read_one(entry, index, workers) for index, entry in enumerate(entries)), key=lambda f: f.at_s)


def _read_one(entry: Any, index: int, workers: Sequence[str]) -> Fault:
    where = f"fault {index}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is {entry!r}: it must be an object with at_s, kind, worker, seconds, amount")
    for name in entry:
        _one_of(f"{where}: field", name, ("at_s", "kind", "worker", "seconds", "amount"))
    kind = FaultKind(_one_of(f"{where}: kind", str(entry.get("kind")), [kind.value for kind in FaultKind]))
    worker = entry.get("worker")
    if kind is not FaultKind.PRICE:
        _one_of(f"{where}: worker", str(worker), workers)
    numbers = {}
    for name in ("at_s", "seconds", "amount"):
        value = entry.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (value < 0 and kind is not FaultKind.SKEW):
            raise ConfigError(f"{where}: {name}={value!r} is not possible: give a number from 0")
        numbers[name] = float(value)
    return Fault(kind=kind, worker=worker, **numbers)


def _one_of(what: str, value: str, possible: Sequence[str]) -> str:
    if value in possible:
        return value
    near = difflib.get_close_matches(value, possible, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(possible[:12])
    raise ConfigError(f"{what} {value!r} is unknown: {hint}possible: {shown}")
