"""Limits that configuration sets and the scheduler keeps to. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """
    max_num_seqs            most sequences that run at once
    max_num_batched_tokens  most tokens in one step
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool = True
    enable_inflight_sharing: bool = True
