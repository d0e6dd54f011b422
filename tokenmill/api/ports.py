"""What the HTTP door needs of the layers below, as one small Protocol; operations.dispatcher fulfils it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, TokenDelta
from tokenmill.cost.ledger import Ledger
from tokenmill.operations.health import Health
from tokenmill.operations.members import MemberView


class DispatcherPort(Protocol):
    """`generate` raises typed errors; leaving its iterator aborts the request."""

    @property
    def ledger(self) -> Ledger: ...

    def models(self) -> Sequence[str]: ...

    def cards(self) -> Mapping[str, ModelCard]: ...

    def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]: ...

    def health(self) -> Health: ...

    def snapshot(self) -> Sequence[MemberView]: ...
