"""Ratios between systems measured in turns, with their spread. Pure. Not responsible for: the turns (bench)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.workloads.percentiles import percentile

#: name -> True where more is better
METRICS = {
    "total_tput_per_s": True,
    "output_tput_per_s": True,
    "goodput_tokens_per_s": True,
    "ttft_s_p50": False,
    "ttft_s_p99": False,
    "tpot_s_p50": False,
    "itl_s_p99": False,
    "e2e_s_p50": False,
    "usd_per_mtok_total": False,
    "usd_per_mtok_output": False,
    "joules_per_token": False,
}


def compare(rounds: Sequence[Mapping[str, Mapping[str, Any]]], base: str) -> dict[str, dict[str, Any]]:
    """metric -> medians, and per system the ratio to `base`: median over the rounds, lowest, highest.

    rounds  one report per system and round; ratios are taken within a round, so that what slows both cancels out
    """
    labels = list(dict.fromkeys(label for reports in rounds for label in reports))
    compared: dict[str, dict[str, Any]] = {}
    for metric, more_is_better in METRICS.items():
        values = {label: [r[label][metric] for r in rounds if label in r and r[label].get(metric)] for label in labels}
        if not values.get(base):
            continue
        compared[metric] = {
            "more_is_better": more_is_better,
            "median": {label: percentile(found, 50) for label, found in values.items() if found},
            "ratio": {
                label: _spread(_ratios(rounds, label, base, metric))
                for label in labels
                if label != base and _ratios(rounds, label, base, metric)
            },
        }
    return compared


def _ratios(rounds: Sequence[Mapping[str, Mapping[str, Any]]], label: str, base: str, metric: str) -> list[float]:
    pairs = [(r[label].get(metric), r[base].get(metric)) for r in rounds if label in r and base in r]
    return [ours / theirs for ours, theirs in pairs if ours and theirs]


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    return {"median": percentile(ratios, 50), "low": min(ratios), "high": max(ratios), "num_rounds": len(ratios)}
