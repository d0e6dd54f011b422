"""What a run of one workload on one engine gave, and the figures of several. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer, seconds since all requests of its run were submitted. token_ids: () where the door tells none."""

    first_s: float
    last_s: float
    num_tokens: int
    token_ids: tuple[int, ...] = ()

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(1, self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Run:
    wall_s: float
    answers: tuple[Heard, ...]
    peak_pss_bytes: int

    @property
    def output_tput_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.wall_s


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians over runs; TTFT and TPOT are medians over all answers; spread = (most - least) / median."""
    rates = [run.output_tput_per_s for run in runs]
    answers = [answer for run in runs for answer in run.answers]
    middle = statistics.median(rates)
    return {
        "output_tput_per_s": middle,
        "output_tput_per_s_runs": rates,
        "spread": (max(rates) - min(rates)) / middle,
        "ttft_s_p50": statistics.median(answer.first_s for answer in answers),
        "tpot_s_p50": statistics.median(answer.tpot_s for answer in answers),
        "tpot_s_max": max(answer.tpot_s for answer in answers),
        "peak_pss_bytes": max(run.peak_pss_bytes for run in runs),
    }


def ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> dict[str, Any]:
    """Ours over theirs, pair by pair of one alternation: a slow spell of the machine meets both."""
    pairs = [mine.output_tput_per_s / other.output_tput_per_s for mine, other in zip(ours, theirs, strict=True)]
    return {"ratio": statistics.median(pairs), "ratio_least": min(pairs), "ratio_most": max(pairs)}


def agreement(ours: Run, theirs: Run) -> float | None:
    """Median share of each answer up to the first token that differs; None when a door tells no ids."""
    shares = []
    for mine, other in zip(ours.answers, theirs.answers, strict=True):
        if not mine.token_ids or not other.token_ids:
            return None
        pairs = list(zip(mine.token_ids, other.token_ids, strict=False))
        shares.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs)) / len(pairs))
    return statistics.median(shares)
