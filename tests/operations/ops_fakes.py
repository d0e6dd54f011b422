"""Builders and fakes of the operations tests: cards, requests, frames, and both ends of a worker's wire."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.core.clock import ManualClock
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, SamplingParams, TokenDelta
from tokenmill.core.wire import Hello, StepFrame, ToFrontend, ToWorker, WorkerExited, WorkerStats
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatch import DispatchCore
from tokenmill.operations.router.registry import load_policy

RATE = DeviceRate(usd_per_hour=3.6, watts=100.0)
VOCAB_SIZE = 256


def make_card(name: str = "m", **changes: object) -> ModelCard:
    fields: dict[str, object] = {
        "name": name,
        "architecture": "counting",
        "max_model_len": 4096,
        "kv_capacity_tokens": 65536,
        "max_num_seqs": 4,
        "vocab_size": VOCAB_SIZE,
        "block_size": 16,
        "weights_version": "0",
    }
    return ModelCard(**(fields | changes))


def make_request(request_id: str, model: str = "m", num_tokens: int = 4, max_tokens: int = 4) -> Request:
    return Request(
        request_id=request_id,
        model=model,
        prompt_token_ids=[i % VOCAB_SIZE for i in range(1, num_tokens + 1)],
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
    )


def make_hello(worker_id: str = "w0", incarnation: int = 0, model: str = "m", started_s: float = 0.0) -> Hello:
    return Hello(worker_id=worker_id, incarnation=incarnation, pid=100, started_s=started_s, card=make_card(model))


def make_frame(
    worker_id: str = "w0",
    incarnation: int = 0,
    *deltas: TokenDelta,
    until_s: float = 1.0,
    num_received: int = 10**6,
    **stats: int,
) -> StepFrame:
    return StepFrame(
        worker_id=worker_id,
        incarnation=incarnation,
        until_s=until_s,
        num_received=num_received,
        deltas=deltas,
        stats=WorkerStats(**stats),  # type: ignore[arg-type]
    )


def tokens(request_id: str, *token_ids: int, finish: FinishReason | None = None) -> TokenDelta:
    return TokenDelta(request_id=request_id, token_ids=token_ids, finish_reason=finish)


def refusal(request_id: str, code: str, message: str = "no") -> TokenDelta:
    return TokenDelta(request_id=request_id, finish_reason=FinishReason.ERROR, error=(code, message))


def make_exit(
    worker_id: str = "w0", incarnation: int = 0, *, will_restart: bool = True, at_s: float = 2.0
) -> WorkerExited:
    return WorkerExited(
        worker_id=worker_id,
        incarnation=incarnation,
        exit_code=-9,
        at_s=at_s,
        will_restart=will_restart,
        started_s=0.0,
    )


def make_core(
    config: OperationsConfig | None = None, workers: Sequence[str] = ("w0",), model: str = "m"
) -> DispatchCore:
    """A core whose workers have said Hello at second 0."""
    config = config or OperationsConfig()
    core = DispatchCore(config, load_policy(config.router, config.router_seed), Ledger(), RATE)
    for worker_id in workers:
        core.handle(make_hello(worker_id, model=model), 0.0)
    return core


class FakeLink:
    """A worker's link whose messages the test deals out; a wait without any moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.inbox: list[list[ToWorker]] = []
        self.sent: list[ToFrontend] = []
        self.is_lost = False
        self.waits: list[float] = []

    def receive(self, timeout_s: float) -> list[ToWorker]:
        self.waits.append(timeout_s)
        if self.inbox:
            return self.inbox.pop(0)
        self.clock.advance(timeout_s)
        return []

    def send(self, message: ToFrontend) -> None:
        self.sent.append(message)

    def was_lost(self) -> bool:
        was_lost, self.is_lost = self.is_lost, False
        return was_lost

    def close(self, linger_s: float) -> None:
        pass

    def frames(self) -> list[StepFrame]:
        return [message for message in self.sent if isinstance(message, StepFrame)]


class FakeLifeline:
    """Wants what the test set, or after `num_turns` looks, to stop."""

    def __init__(self, num_turns: int = 1000) -> None:
        self.num_turns = num_turns
        self.drain = False

    def wants_drain(self) -> bool:
        return self.drain

    def wants_stop(self) -> bool:
        self.num_turns -= 1
        return self.num_turns < 0
