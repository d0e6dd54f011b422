"""Dollars spent by tenant and by session, sub-agents included, for as long as they are remembered: what budgets ask.

Pure. Not responsible for: limits (cost/budgets), or what the money went into (cost/cells).
"""

from __future__ import annotations

from collections import OrderedDict

from tokenmill.cost.cells import Owner
from tokenmill.cost.tally import MONEY_PER_USD

#: A chain of parents longer than this is a loop, or as good as one.
_MAX_DEPTH = 16


class Spending:
    """`max_names`: of tenants, and of sessions; beyond it who spent nothing for the longest time is forgotten."""

    def __init__(self, max_names: int = 100_000) -> None:
        self._max_names = max_names
        self._tenants: OrderedDict[str, int] = OrderedDict()
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._parents: dict[str, str] = {}

    def adopt(self, session: str, parent: str) -> None:
        """What `session` spends from now on counts for `parent` too, and for its parents."""
        if session != parent:
            self._parents[session] = parent
            self._spend(self._sessions, session, 0)

    def add(self, owner: Owner, money: int) -> None:
        if owner.tenant is not None:
            self._spend(self._tenants, owner.tenant, money)
        for session in self.line_of(owner.session):
            self._spend(self._sessions, session, money)

    def line_of(self, session: str | None) -> list[str]:
        """A session and those that it was started by, nearest first."""
        line: list[str] = []
        while session is not None and session not in line and len(line) < _MAX_DEPTH:
            line.append(session)
            session = self._parents.get(session)
        return line

    def parent(self, session: str) -> str | None:
        return self._parents.get(session)

    def tenant_usd(self, tenant: str) -> float:
        return self._tenants.get(tenant, 0) / MONEY_PER_USD

    def session_usd(self, session: str) -> float:
        return self._sessions.get(session, 0) / MONEY_PER_USD

    def _spend(self, accounts: OrderedDict[str, int], name: str, money: int) -> None:
        accounts[name] = accounts.get(name, 0) + money
        accounts.move_to_end(name)
        if len(accounts) > self._max_names:
            forgotten, _ = accounts.popitem(last=False)
            if accounts is self._sessions:
                self._parents.pop(forgotten, None)
