"""What the decisions of dispatch.py ask for: frozen orders to whoever drives it (dispatcher.py, the twin)."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import TokenDelta
from tokenmill.core.wire import ToWorker, Unresponsive


@dataclass(frozen=True, slots=True)
class Send:
    """Put `message` on the wire to this life of a worker."""

    worker_id: str
    incarnation: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the consumer these tokens; a finish_reason makes it the last thing it gets."""

    request_id: str
    delta: TokenDelta


@dataclass(frozen=True, slots=True)
class Fail:
    """End the consumer's iteration with a typed error."""

    request_id: str
    error: TokenmillError


@dataclass(frozen=True, slots=True)
class Replace:
    """Tell the supervisor that a process lives but does not answer."""

    message: Unresponsive


Action = Send | Deliver | Fail | Replace
