"""A worker that reports its time as a real one does: every frame begins where the last one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.core.request import TokenDelta
from tokenmill.core.wire import StepFrame, WorkerStats


class Teller:
    """Makes the frames of one worker life; times are eighths of a second, so that sums are exact."""

    def __init__(self, worker_id: str = "w", incarnation: int = 0, started_s: float = 0.0) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.started_s = self.until_s = started_s
        self.steps = 0

    def frame(
        self,
        charges: dict[str, float] | None = None,
        *,
        idle_s: float = 0.0,
        startup_s: float = 0.0,
        unattributed_s: float = 0.0,
        tokens: int = 1,
        joules: float | None = None,
        cached: int | None = None,
        prompt_tokens: int = 0,
        **parts: Any,
    ) -> StepFrame:
        """`charges`: request -> seconds; each of them gets `tokens` new tokens. `parts`: more of its delta."""
        deltas = tuple(
            TokenDelta(
                request_id=r,
                token_ids=tuple(range(tokens)),
                seconds=s,
                num_cached_tokens=cached,
                num_prefill_tokens=prompt_tokens,
                **parts,
            )
            for r, s in (charges or {}).items()
        )
        busy_s = sum(d.seconds for d in deltas) + unattributed_s
        self.until_s += busy_s + idle_s + startup_s
        self.steps += bool(deltas)
        return StepFrame(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            until_s=self.until_s,
            busy_s=busy_s,
            idle_s=idle_s,
            startup_s=startup_s,
            unattributed_s=unattributed_s,
            joules=joules,
            deltas=deltas,
            stats=WorkerStats(steps_total=self.steps),
        )


@pytest.fixture
def teller() -> Callable[..., Teller]:
    return Teller
