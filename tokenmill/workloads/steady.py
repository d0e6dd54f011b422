"""The steady part of a run, by what was in flight, and the rates inside it. Pure.

The first wave of a closed loop and the tail of every run are not what a busy server does. The window starts when the
number in flight first reaches its level and ends when it last does; tokens are counted when they arrived, a prompt when
its first token did. Latencies are those of the requests sent inside. Not responsible for: whole runs (request_metrics).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenmill.workloads.request_metrics import latencies, rate, throughput
from tokenmill.workloads.request_record import RequestRecord

_LEVEL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Window:
    begin_s: float
    end_s: float
    level: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


def steady_window(records: Sequence[RequestRecord], asked_level: float | None) -> Window | None:
    """None when there is none: the level was never reached, or only for a moment.

    asked_level  the concurrency of a closed loop; None (open loop): the mean over the run is the level
    """
    steps = _steps(records)
    if not steps:
        return None
    level = _LEVEL_SHARE * asked_level if asked_level else _mean_level(steps)
    busy = [i for i, (_, number) in enumerate(steps[:-1]) if number >= level]
    if not busy:
        return None
    begin_s, end_s = steps[busy[0]][0], steps[busy[-1] + 1][0]
    first_end_s = min(record.end_s for record in records)
    begin_s = max(begin_s, first_end_s)  # the first wave starts together and is prefilled together
    return Window(begin_s, end_s, level) if end_s > begin_s else None


def steady_report(records: Sequence[RequestRecord], asked_level: float | None) -> dict[str, object] | None:
    """Keys as in the report of the whole run; None: no steady part."""
    window = steady_window(records, asked_level)
    if window is None:
        return None
    ok = [record for record in records if record.is_ok]
    counts = dict.fromkeys(("input", "uncached_input", "output", "total"), 0.0)
    for record in ok:
        _count(record, window, counts)
    counts["total"] = counts["input"] + counts["output"]
    inside = [record for record in ok if window.begin_s <= record.sent_s < window.end_s]
    num_ended = sum(1 for record in ok if window.begin_s <= record.end_s < window.end_s)
    return {
        "begin_s": window.begin_s - min(record.sent_s for record in records),
        "duration_s": window.duration_s,
        "level": window.level,
        "num_requests_sent": len(inside),
        "num_in_flight_mean": rate(_overlap_s(records, window), window.duration_s),
        **throughput(counts, num_ended, window.duration_s),
        **latencies(inside),
    }


def _steps(records: Sequence[RequestRecord]) -> list[tuple[float, int]]:
    """(second, number in flight from then on); an end and a start at one moment are one step."""
    changes = sorted([(r.sent_s, 1) for r in records] + [(r.end_s, -1) for r in records])
    steps: list[tuple[float, int]] = []
    number = 0
    for at_s, change in changes:
        number += change
        if steps and steps[-1][0] == at_s:
            steps[-1] = (at_s, number)
        else:
            steps.append((at_s, number))
    return steps


def _mean_level(steps: Sequence[tuple[float, int]]) -> float:
    area = sum(number * (after[0] - at_s) for (at_s, number), after in pairwise(steps))
    return area / max(steps[-1][0] - steps[0][0], 1e-12)


def _count(record: RequestRecord, window: Window, counts: dict[str, float]) -> None:
    if not record.chunk_s:
        return
    if window.begin_s <= record.chunk_s[0] < window.end_s:
        counts["input"] += record.num_prompt_tokens
        counts["uncached_input"] += record.num_prompt_tokens - record.num_cached_tokens
    inside = bisect.bisect_left(record.chunk_s, window.end_s) - bisect.bisect_left(record.chunk_s, window.begin_s)
    counts["output"] += record.num_output_tokens * inside / len(record.chunk_s)


def _overlap_s(records: Sequence[RequestRecord], window: Window) -> float:
    return sum(max(0.0, min(r.end_s, window.end_s) - max(r.sent_s, window.begin_s)) for r in records)
