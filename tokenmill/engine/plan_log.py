"""A record of what a scheduler was told and what it planned; and the scheduler that keeps it.

One JSON object a line: the pools and limits first, then requests as they come, plans with their chunks, results with
the tokens that stayed. sim/plan_replay.py plans the same again. Holds token ids: it is for machines of one's own.
Not responsible for: decisions (scheduler.py).
"""

from __future__ import annotations

import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.core.errors import ConfigError
from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.step import StepPlan, StepResult
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.scheduler import AheadPlan, Scheduler, SchedulerLimits
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.speculative.depth import DepthPolicy

_encode = msgspec.json.Encoder().encode


def plan_row(plan: StepPlan) -> list[list[Any]]:
    """What a plan says, without block ids: [request, computed, scheduled, drafts, is it sampling]."""
    return [
        [s.request_id, s.num_computed_tokens, s.num_scheduled_tokens, s.num_draft_tokens, s.is_sampling]
        for s in plan.sequences
    ]


class LoggedScheduler(Scheduler):
    """The scheduler, writing down its life. A file that cannot be written ends the start, not a step."""

    def __init__(
        self, limits: SchedulerLimits, kv: KVCacheManager, depth: DepthPolicy | None = None, *, path: Path
    ) -> None:
        super().__init__(limits, kv, depth)
        self._file = path.open("wb", buffering=1 << 16)
        weakref.finalize(self, self._file.close)
        self._write(
            {
                "limits": asdict(limits),
                "groups": [asdict(group) for group in kv.groups],
                "num_blocks": kv.num_blocks,
                "block_size": kv.block_size,
                "enable_prefix_caching": kv.enable_prefix_caching,
                "retention_interval": kv.retention_interval,
            }
        )

    def add(self, sequence: Sequence, hasher: BlockHasher) -> None:
        super().add(sequence, hasher)
        request = sequence.request
        self._write(
            {
                "add": sequence.request_id,
                "prompt": list(request.prompt_token_ids),
                "max_tokens": sequence.max_tokens,
                "arrival_order": sequence.arrival_order,
                "request": {
                    "priority": request.priority,
                    "arrival_s": request.arrival_s,
                    "cache_salt": request.cache_salt,
                    "eos_token_ids": request.eos_token_ids,
                },
                "sampling": request.sampling,
                "root": hasher.root.hex(),
            }
        )

    def abort(self, request_id: str) -> Sequence | None:
        sequence = super().abort(request_id)
        if sequence is not None:
            self._write({"abort": request_id})
        return sequence

    def schedule(self) -> StepPlan | None:
        plan = super().schedule()
        if plan is not None:
            self._write({"plan": plan_row(plan)})
        return plan

    def confirm(self, ahead: AheadPlan | None) -> StepPlan | None:
        plan = super().confirm(ahead)
        if plan is not None:
            self._write({"plan": plan_row(plan)})
        return plan

    def update(self, plan: StepPlan, result: StepResult) -> list[Sequence]:
        got = [
            [s.num_accepted_tokens, s.token_ids, s.num_draft_tokens, s.draft_rows_from, s.error]
            for s in result.sequences
        ]
        self._write({"got": got})
        sequences = super().update(plan, result)
        if not (self._running or self._waiting):
            self._file.flush()
        return sequences

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(_encode(line) + b"\n")


def make_scheduler(
    limits: SchedulerLimits, kv: KVCacheManager, depth: DepthPolicy | None = None, *, path: str | None
) -> Scheduler:
    """The scheduler, or with a path the one that keeps a log. ConfigError when it cannot be written."""
    if path is None:
        return Scheduler(limits, kv, depth)
    try:
        return LoggedScheduler(limits, kv, depth, path=Path(path))
    except OSError as error:
        raise ConfigError(f"plan_log={path!r} cannot be written: {error.strerror}") from None
