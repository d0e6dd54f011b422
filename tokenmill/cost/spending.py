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
    """`max_sessions`: beyond it the session that spent nothing for the longest time is forgotten."""

    def __init__(self, max_sessions: int = 100_000) -> None:
        self._max_sessions = max_sessions
        self._tenants: dict[str, int] = {}
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._parents: dict[str, str] = {}

    def adopt(self, session: str, parent: str) -> None:
        """What `session` spends from now on counts for `parent` too, and for its parents."""
        if session != parent:
            self._parents[session] = parent
            self._touch(session, 0)

    def add(self, owner: Owner, money: int) -> None:
        if owner.tenant is not None:
            self._tenants[owner.tenant] = self._tenants.get(owner.tenant, 0) + money
        for session in self.line_of(owner.session):
            self._touch(session, money)

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

    def _touch(self, session: str, money: int) -> None:
        self._sessions[session] = self._sessions.get(session, 0) + money
        self._sessions.move_to_end(session)
        if len(self._sessions) > self._max_sessions:
            forgotten, _ = self._sessions.popitem(last=False)
            self._parents.pop(forgotten, None)
