"""Admission: whether a request may enter now, and if not, which typed error says what is possible.

Pure. Not responsible for where an admitted request goes (router/) or whether it fits the model (the worker checks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenmill.core.errors import ModelNotFoundError, OverloadedError, UnavailableError
from tokenmill.core.request import Request
from tokenmill.cost.budgets import Spent
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.members import MemberState, MemberView


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Requests of one model inside the frontend: all in flight, and prompt tokens of those without a first token."""

    num_requests: int = 0
    num_pending_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelSupply:
    """The workers of one model: all of them, for what is said of them, and the ready ones' number and seats."""

    members: tuple[MemberView, ...] = ()
    num_ready: int = 0
    num_seats: int = 0

    @classmethod
    def of(cls, members: Sequence[MemberView]) -> ModelSupply:
        ready = [view for view in members if view.state is MemberState.READY]
        return cls(tuple(members), len(ready), sum(view.card.max_num_seqs for view in ready if view.card))


def admit(
    request: Request,
    supply: ModelSupply,
    load: ModelLoad,
    config: OperationsConfig,
    *,
    models: Iterable[str],
    is_draining: bool = False,
    spent: Spent | None = None,
) -> None:
    """Return when the request may enter; raise the typed error otherwise.

    supply  the workers of its model
    spent   a budget of its session or tenant that has nothing left and must stop it
    """
    if is_draining:
        raise UnavailableError("the server is shutting down and takes no new requests: send it elsewhere or retry")
    if not supply.members:
        known = ", ".join(repr(model) for model in models) or "none yet"
        raise ModelNotFoundError(f"model {request.model!r} is not served here; served: {known}", param="model")
    if not supply.num_ready:
        states = ", ".join(f"{view.worker_id} {view.reason or view.state.value}" for view in supply.members)
        raise UnavailableError(f"no worker of model {request.model!r} is ready ({states}): retry shortly")
    if spent is not None:
        raise spent.error()
    _check_queue(request, supply, load, config)


def _check_queue(request: Request, supply: ModelSupply, load: ModelLoad, config: OperationsConfig) -> None:
    seats = supply.num_seats
    if load.num_requests >= seats + config.max_queued_requests:
        raise OverloadedError(
            f"model {request.model!r} has {load.num_requests} requests in flight; its {supply.num_ready} worker(s) run "
            f"{seats} at once and {config.max_queued_requests} may wait: retry later or raise max_queued_requests"
        )
    num_tokens = len(request.prompt_token_ids)
    if load.num_requests and load.num_pending_tokens + num_tokens > config.max_queued_tokens:
        raise OverloadedError(
            f"model {request.model!r} has {load.num_pending_tokens} prompt tokens waiting and this request adds "
            f"{num_tokens}; {config.max_queued_tokens} may wait: retry later or raise max_queued_tokens"
        )
