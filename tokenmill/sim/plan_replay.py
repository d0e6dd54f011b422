"""Plans a recorded run again: the same requests and results at the same steps must give the same step plans.

Not responsible for: recording (engine/plan_log.py), step times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.request import Request, SamplingParams
from tokenmill.core.step import SequenceResult, StepPlan, StepResult
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.plan_log import plan_row
from tokenmill.engine.scheduler import Scheduler, SchedulerLimits
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.speculative.depth import Candidate, StepCost


@dataclass(frozen=True, slots=True)
class Replayed:
    """difference: where the plans part, for people; None: they are the same."""

    num_steps: int
    num_requests: int
    num_tokens: int
    difference: str | None


class _RecordedDepth:
    """As many drafts as were planned then: how many are worth it was judged by the clock of that machine."""

    def __init__(self) -> None:
        self.drafts: dict[str, int] = {}

    @property
    def is_dormant(self) -> bool:
        return False

    def plan(self, candidates: Items[Candidate], num_other_rows: int) -> list[int]:
        return [self.drafts.get(candidate.request_id, 0) for candidate in candidates]

    def record(self, request_id: str, num_drafts: int, num_accepted: int) -> None: ...

    def record_step(self, cost: StepCost) -> None: ...

    def forget(self, request_id: str) -> None: ...


def replay_plans(path: Path) -> Replayed:
    """ConfigError when the file is no record, or ends in the middle of a line."""
    lines = _read(path)
    depth = _RecordedDepth()
    scheduler = _scheduler(lines[0], depth, path)
    num_steps = num_requests = num_tokens = 0
    pending: list[StepPlan] = []
    for number, line in enumerate(lines[1:], 2):
        if "add" in line:
            _add(scheduler, line)
            num_requests += 1
        elif "abort" in line:
            scheduler.abort(line["abort"])
        elif "plan" in line:
            depth.drafts = {row[0]: row[3] for row in line["plan"] if row[3]}
            plan = scheduler.schedule()
            told = [] if plan is None else plan_row(plan)
            if plan is None or told != line["plan"]:
                return Replayed(num_steps, num_requests, num_tokens, f"line {number}: {line['plan']} is now {told}")
            pending.append(plan)
            num_steps += 1
            num_tokens += plan.num_tokens
        elif "got" in line:
            plan = pending.pop(0)
            scheduler.update(plan, _result(plan, line["got"]))
    scheduler.check_integrity()
    return Replayed(num_steps, num_requests, num_tokens, None)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"plan log {str(path)!r} cannot be read: {error}") from None
    if not lines or "limits" not in lines[0]:
        raise ConfigError(f"{str(path)!r} is no plan log: record one with --set engine.plan_log=FILE")
    return lines


def _scheduler(head: dict[str, Any], depth: _RecordedDepth, path: Path) -> Scheduler:
    groups = [CacheGroup(**group | {"kind": GroupKind(group["kind"])}) for group in head["groups"]]
    kv = KVCacheManager(
        groups,
        head["num_blocks"],
        head["block_size"],
        enable_prefix_caching=head["enable_prefix_caching"],
        retention_interval=head["retention_interval"],
    )
    return Scheduler(SchedulerLimits(**head["limits"]), kv, depth)


def _add(scheduler: Scheduler, line: dict[str, Any]) -> None:
    request = Request(
        request_id=line["add"],
        model="",
        prompt_token_ids=line["prompt"],
        sampling=msgspec.convert(line["sampling"], SamplingParams, strict=False),
        **line["request"] | {"eos_token_ids": tuple(line["request"]["eos_token_ids"])},
    )
    hasher = BlockHasher(scheduler.kv.block_size, "")
    hasher.root = bytes.fromhex(line["root"])
    sequence = Sequence(
        request=request,
        max_tokens=line["max_tokens"],
        arrival_order=line["arrival_order"],
        token_ids=list(line["prompt"]),
        block_hashes=[],
    )
    scheduler.add(sequence, hasher)


def _result(plan: StepPlan, got: list[list[Any]]) -> StepResult:
    return StepResult(
        tuple(
            SequenceResult(
                planned.request_id,
                tuple(token_ids),
                accepted,
                error=error,
                num_draft_tokens=drafts,
                draft_rows_from=rows_from,
            )
            for planned, (accepted, token_ids, drafts, rows_from, error) in zip(plan.sequences, got, strict=True)
        )
    )
