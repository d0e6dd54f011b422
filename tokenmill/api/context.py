"""What the routes share: the dispatcher, the models at the door, the settings, and how many requests are inside."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tokenmill.api.config import ApiConfig
from tokenmill.api.model_service import ModelServices
from tokenmill.api.ports import DispatcherPort
from tokenmill.api.request_metrics import RequestMetrics
from tokenmill.api.responses.store import ResponseStore
from tokenmill.core.clock import Clock
from tokenmill.core.errors import UnavailableError

_MAX_SEED = 2**63 - 1


class Lifecycle:
    """Loading, open, or draining; and the requests inside. The only writer is the server process."""

    def __init__(self, loading: str | None = None) -> None:
        self.loading = loading
        self.is_draining = False
        self.num_inside = 0

    def not_ready_reason(self) -> str | None:
        return "draining: the server is shutting down" if self.is_draining else self.loading

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around every request that makes tokens; refuses it while draining."""
        if self.is_draining:
            raise UnavailableError("the server is shutting down: send the request to another one, or again later")
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1


@dataclass(frozen=True, slots=True)
class ApiContext:
    """
    rng        draws the seeds of requests that bring none
    responses  what /v1/responses can go on from
    """

    dispatcher: DispatcherPort
    config: ApiConfig
    models: ModelServices
    metrics: RequestMetrics
    clock: Clock
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    rng: random.Random = field(default_factory=random.SystemRandom)
    responses: ResponseStore = field(default_factory=lambda: ResponseStore(0, 0.0))

    def draw_seed(self) -> int:
        return self.rng.randrange(_MAX_SEED)
