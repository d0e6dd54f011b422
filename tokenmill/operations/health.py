"""Whether the deployment is well, and if not, why: a judgement over the fleet's views. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.members import MemberState, MemberView


@dataclass(frozen=True, slots=True)
class Health:
    """
    is_healthy   False: something is wrong that will not pass by itself; `reasons` say what
    is_ready     every model has a worker that takes requests and gets on with them
    reasons      for people; also those that do not make the deployment unhealthy (a restart under way)
    """

    is_healthy: bool
    is_ready: bool
    reasons: tuple[str, ...] = ()


def judge(
    members: Sequence[MemberView],
    config: OperationsConfig,
    now_s: float,
    *,
    is_draining: bool = False,
    failure: str | None = None,
    unaware: Mapping[str, str] | None = None,
) -> Health:
    """
    failure  the frontend itself is broken
    unaware  workers that are routed to without knowing their cache, and why
    """
    stalled = [stall_reason(view, now_s) for view in members if is_stalled(view, config, now_s)]
    gone = [f"model {model}: no worker is left" for model in _models(members) if not _has_hope(members, model)]
    errors = [*([failure] if failure else []), *stalled, *gone]
    notes = [f"worker {view.worker_id}: {view.reason}" for view in members if view.reason]
    notes += [f"worker {worker_id}: cache awareness lost ({why})" for worker_id, why in (unaware or {}).items()]
    if is_draining:
        notes.append("draining: no new requests")
    working = [view for view in members if view.state is MemberState.READY and not is_stalled(view, config, now_s)]
    has_all = bool(members) and _models(working) == _models(members)
    return Health(
        is_healthy=not errors,
        is_ready=has_all and not is_draining and failure is None,
        reasons=tuple(errors + notes) if members else ("no worker has announced itself yet", *errors),
    )


def is_stalled(view: MemberView, config: OperationsConfig, now_s: float) -> bool:
    """It has work, and nothing came of it for too long, whether or not it still answers."""
    is_working = view.state in (MemberState.READY, MemberState.DRAINING) and view.num_in_flight > 0
    return is_working and now_s - view.progress_s > config.stall_timeout_s


def stall_reason(view: MemberView, now_s: float) -> str:
    return (
        f"worker {view.worker_id} (model {view.model}): {view.num_in_flight} requests in flight and no progress for "
        f"{now_s - view.progress_s:.1f} s; its last frame came {now_s - view.last_seen_s:.1f} s ago"
    )


def _models(members: Sequence[MemberView]) -> list[str]:
    return sorted({view.model for view in members})


def _has_hope(members: Sequence[MemberView], model: str) -> bool:
    """A worker of it works, or one is coming."""
    return any(
        view.model == model and (view.state is not MemberState.LOST or view.is_expected_back) for view in members
    )
