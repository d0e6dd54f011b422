"""Budgets: what a tenant, a session with its sub-agents, or one request may cost, and what happens when it is spent.

What counts is what the steps of its requests cost (prefill to transfer, and overrun) and the storage of its blocks;
idle time and start-up are the fleet's. Pure. Not responsible for: what was spent (cost/spending), how a request ends
(operations/dispatch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tokenmill.core.config import FrozenConfig
from tokenmill.core.errors import BudgetError
from tokenmill.core.request import Request
from tokenmill.cost.ledger import Ledger


class BudgetConfig(FrozenConfig):
    """Dollars; None: no limit.

    session_usd          of each session, its sub-agents included
    tenant_usd           of each tenant
    tenants              of named tenants, instead of tenant_usd
    when_spent           stop: new requests are refused and answers that run are cut; degrade: requests from then on
                         run behind all others
    degraded_by          added to the priority of requests whose budget is spent (lower runs sooner)
    """

    session_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    tenant_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    tenants: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    when_spent: Literal["stop", "degrade"] = "stop"
    degraded_by: int = Field(default=1_000_000, ge=1, le=2**31)

    def of_tenant(self, tenant: str) -> float | None:
        return self.tenants.get(tenant, self.tenant_usd)


@dataclass(frozen=True, slots=True)
class Spent:
    """A budget that is used up. `what` names the account for people."""

    what: str
    limit_usd: float
    spent_usd: float

    def error(self) -> BudgetError:
        return BudgetError(
            f"the budget of {self.what} is spent: ${self.spent_usd:.6g} of ${self.limit_usd:.6g}; raise it, or go on "
            "under another session or tenant"
        )


def find_spent(request: Request, config: BudgetConfig, ledger: Ledger, *, is_running: bool = False) -> Spent | None:
    """The first account of this request that has nothing left; None: it may go on.

    is_running  it has begun, so what it cost itself counts where it has no session
    """
    if is_running and request.budget_usd is not None and request.session_id is None:
        spent = _check(f"request {request.request_id}", request.budget_usd, ledger.request_cost(request.request_id).usd)
        if spent is not None:
            return spent
    has_limit = request.budget_usd is not None or config.session_usd is not None
    for name in _sessions(request, ledger) if has_limit else ():
        told = request.budget_usd if name == request.session_id else None
        limit = min((usd for usd in (config.session_usd, told) if usd is not None), default=None)
        spent = _check(f"session {name!r}", limit, ledger.spending.session_usd(name))
        if spent is not None:
            return spent
    if request.tenant is not None:
        limit = config.of_tenant(request.tenant)
        return _check(f"tenant {request.tenant!r}", limit, ledger.spending.tenant_usd(request.tenant))
    return None


def _sessions(request: Request, ledger: Ledger) -> list[str]:
    """The request's session and all that it was started by: a sub-agent spends its lead's money."""
    if request.session_id is None:
        return []
    sessions = ledger.spending.line_of(request.session_id)
    parents = ledger.spending.line_of(request.parent_session_id)
    return [*sessions, *(name for name in parents if name not in sessions)]


def _check(what: str, limit_usd: float | None, spent_usd: float) -> Spent | None:
    return Spent(what, limit_usd, spent_usd) if limit_usd is not None and spent_usd >= limit_usd else None
