"""The workloads that engines are compared on: token ids cut from English text, greedy, every answer full length.

No prompt is used twice in a run, so that prefix caches start cold. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PeerWorkload:
    """`concurrency` requests submitted at once, num_prompt tokens each, of which the first num_shared are common."""

    name: str
    concurrency: int
    num_prompt: int
    num_output: int
    num_shared: int = 0

    @property
    def num_own(self) -> int:
        return self.num_prompt - self.num_shared

    @property
    def num_text_tokens(self) -> int:
        return self.num_shared + self.concurrency * self.num_own

    def describe(self) -> str:
        prompt = f"{self.num_shared} shared + {self.num_own} own" if self.num_shared else str(self.num_prompt)
        return f"{self.concurrency} x ({prompt}) + {self.num_output}"


WORKLOADS = {
    workload.name: workload
    for workload in (
        PeerWorkload("W1", 1, 128, 128),
        PeerWorkload("W2", 8, 256, 128),
        PeerWorkload("W3", 32, 512, 128),
        PeerWorkload("W4", 32, 1088, 64, num_shared=1024),
    )
}


class PromptCutter:
    """Cuts prompts from the front of a text on; past its end it goes on from another start."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = list(token_ids)
        self._at = 0
        self._round = 0

    def cut(self, workload: PeerWorkload) -> list[list[int]]:
        ids = self._take(workload.num_text_tokens)
        shared, own = ids[: workload.num_shared], ids[workload.num_shared :]
        return [shared + own[i * workload.num_own : (i + 1) * workload.num_own] for i in range(workload.concurrency)]

    def _take(self, num: int) -> list[int]:
        assert num <= len(self._ids) // 2, f"{num} tokens of a text of {len(self._ids)}"
        if self._at + num > len(self._ids):
            self._round += 1
            self._at = 7 * self._round  # other cuts than the first time round
        self._at += num
        return self._ids[self._at - num : self._at]


def parse_workloads(text: str) -> list[PeerWorkload]:
    """`W1,W3` or `W1..W4`."""
    names = list(WORKLOADS)
    chosen: list[str] = []
    for part in text.split(","):
        ends = [end.strip() for end in re.split(r"\.\.\.?", part)]
        wrong = [end for end in ends if end not in WORKLOADS]
        if wrong or len(ends) > 2:
            raise ConfigError(f"--workloads {part.strip()!r} is unknown: write some of {', '.join(names)}, or W1..W4")
        chosen += names[names.index(ends[0]) : names.index(ends[-1]) + 1]
    return [WORKLOADS[name] for name in dict.fromkeys(chosen)]
