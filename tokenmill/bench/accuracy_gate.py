"""A quick check that a server answers right before its speed counts: small sums, greedily, by completion or chat.

A fast but broken server fails it; it says little about how good a model is (that is `bench quality`).
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.bench.client import Client
from tokenmill.bench.target import Target

_NUM_SHOTS = 6
_NUM_AT_ONCE = 8
_MAX_TOKENS = 12
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class GateResult:
    num_asked: int
    num_right: int
    num_failed: int
    floor: float

    @property
    def accuracy(self) -> float:
        return self.num_right / self.num_asked

    @property
    def is_passed(self) -> bool:
        return self.accuracy >= self.floor and self.num_failed == 0

    def to_dict(self) -> dict[str, Any]:
        counts = {"num_asked": self.num_asked, "num_right": self.num_right, "num_failed": self.num_failed}
        return counts | {"accuracy": self.accuracy, "floor": self.floor, "is_passed": self.is_passed}


def sums(number: int, seed: int = 0) -> list[tuple[str, int]]:
    """(prompt with solved examples, answer to the last sum)."""
    rng = random.Random(seed)
    asked = []
    for _ in range(number):
        pairs = [(rng.randrange(2, 30), rng.randrange(2, 30)) for _ in range(_NUM_SHOTS + 1)]
        lines = [f"{a} + {b} = {a + b}" for a, b in pairs[:-1]]
        a, b = pairs[-1]
        asked.append(("\n".join([*lines, f"{a} + {b} ="]), a + b))
    return asked


async def run_gate(client: Client, target: Target, *, num_asked: int = 40, floor: float = 0.85) -> GateResult:
    """Several at once, since faults of batching show only then."""
    seats = asyncio.Semaphore(_NUM_AT_ONCE)
    plain = replace(target, ignore_eos=False)

    async def one(prompt: str, answer: int) -> tuple[bool, bool]:
        async with seats:
            record, text = await client.send(plain, prompt, _MAX_TOKENS)
        found = _NUMBER.search(text)
        return record.is_ok, bool(found) and found is not None and int(found.group()) == answer

    results = await asyncio.gather(*(one(prompt, answer) for prompt, answer in sums(num_asked)))
    num_failed = sum(1 for is_ok, _ in results if not is_ok)
    return GateResult(num_asked, sum(1 for _, is_right in results if is_right), num_failed, floor)
