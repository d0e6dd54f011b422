"""Whose a request is: tenant, agent session and its parent, and the session's budget, from headers or the body.

Headers win, since a gateway in front sets them. Session headers of agent frameworks are read too, so that they need
no change. Not responsible for: who may claim to be whom (a gateway's business), limits (operations/admission).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from tokenmill.api.openai_types import GenerationFields
from tokenmill.core.errors import BadRequestError

Body = TypeVar("Body", bound=GenerationFields)

TENANT = "x-tokenmill-tenant"
BUDGET = "x-tokenmill-budget-usd"
#: First found counts, and its own parent header with it: ours, Dynamo's canonical ones, OpenCode's, those of sub-agents
#: and sessions of Claude Code, Codex's. Names as NVIDIA Dynamo 1.5 reads them (protocols/agents.rs, 2026).
_SESSIONS = (
    ("x-tokenmill-session-id", "x-tokenmill-parent-session-id"),
    ("x-dynamo-session-id", "x-dynamo-parent-session-id"),
    ("x-session-id", "x-parent-session-id"),
    ("x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
    ("x-claude-code-session-id", ""),
    ("thread-id", "x-codex-parent-thread-id"),
    ("session-id", ""),
)
_CLAUDE_SESSION = "x-claude-code-session-id"
_GOOD_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


def identify(body: Body, headers: Mapping[str, str]) -> Body:
    """The body with what the headers say of tenant (`user`), `session_id`, `parent_session_id` and `budget_usd`."""
    told: dict[str, Any] = {"user": headers.get(TENANT) or None}
    told |= _session(headers)
    if headers.get(BUDGET):
        told["budget_usd"] = _dollars(headers[BUDGET])
    update = {name: value for name, value in told.items() if value is not None}
    body = body.model_copy(update=update) if update else body
    for name in ("session_id", "parent_session_id"):
        _check_name(name, getattr(body, name))
    if body.budget_usd is not None and not (math.isfinite(body.budget_usd) and body.budget_usd >= 0):
        raise BadRequestError(f"budget_usd={body.budget_usd} is not possible: give 0 or more", param="budget_usd")
    return body


def _session(headers: Mapping[str, str]) -> dict[str, str | None]:
    for name, parent_name in _SESSIONS:
        session = headers.get(name)
        if session:
            parent = headers.get(parent_name) if parent_name else None
            if name == "x-claude-code-agent-id":  # a sub-agent of the session itself names no parent
                parent = parent or headers.get(_CLAUDE_SESSION)
            return {"session_id": session, "parent_session_id": parent or None}
    return {}


def _dollars(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadRequestError(
            f"{BUDGET}: {text[:40]!r} is no number of dollars: write e.g. 0.05", param=BUDGET
        ) from None


def _check_name(name: str, value: str | None) -> None:
    if value is not None and not _GOOD_NAME.fullmatch(value):
        raise BadRequestError(f"{name} must be 1 to 256 printable characters", param=name)
