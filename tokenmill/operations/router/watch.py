"""Keeps the knowledge that policies read, by what happens to workers and requests; one Knowledge per model. Pure.

Blocks are predicted where a request goes, until its first token: by then the worker's events have told. Where workers
tell nothing, their caches are assumed. Not responsible for: choosing (policies), the wire (dispatch.py).
"""

from __future__ import annotations

from tokenmill.core.kv_events import BlocksRemoved, BlocksStored, IndexedGroup, KVEvents, KVFormat, KVSnapshot
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, TokenDelta
from tokenmill.core.slo import SLO
from tokenmill.core.wire import Hello, StepFrame
from tokenmill.operations.router.assumed import AssumedCaches
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.knowledge import Knowledge


class RoutingWatch:
    """
    has_events  workers are asked to tell of their caches; False: caches are assumed
    max_blocks  of each index
    """

    def __init__(
        self, *, has_events: bool = True, max_blocks: int = 4_000_000, usd_per_s: float = 1e-3, slo: SLO | None = None
    ) -> None:
        self._has_events = has_events
        self._max_blocks = max_blocks
        self._usd_per_s = usd_per_s
        self._slo = slo
        self._of_model: dict[str, Knowledge] = {}
        self._model_of: dict[str, str] = {}
        self._cards: dict[str, ModelCard] = {}
        self._assumed = AssumedCaches()
        self._numbers: dict[str, int] = {}

    def of_model(self, model: str) -> Knowledge:
        knowledge = self._of_model.get(model)
        if knowledge is None:
            knowledge = self._of_model[model] = Knowledge(usd_per_s=self._usd_per_s, slo=self._slo)
            knowledge.index.max_blocks = self._max_blocks
        return knowledge

    def models(self) -> list[str]:
        return sorted(self._of_model)

    def reprice(self, usd_per_s: float) -> None:
        self._usd_per_s = usd_per_s
        for knowledge in self._of_model.values():
            knowledge.usd_per_s = usd_per_s

    # -- workers --

    def hello(self, hello: Hello) -> None:
        """A life of a worker begins, or a new session of it: it has nothing that we know of."""
        worker_id, card = hello.worker_id, hello.card
        self.gone(worker_id)
        self._model_of[worker_id], self._cards[worker_id] = card.name, card
        index = self.of_model(card.name).index
        index.join(worker_id, hello.incarnation)
        if not self._has_events:
            self._numbers[worker_id] = 0
            form = KVFormat(
                block_size=card.block_size,
                weights_version=card.weights_version,
                hash_algorithm=card.hash_algorithm,
                tokenizer_digest=card.tokenizer_digest,
                groups=(IndexedGroup("assumed"),),
            )
            index.load(
                KVSnapshot(worker_id=worker_id, incarnation=hello.incarnation, number=0, format=form, hashes=([],))
            )

    def gone(self, worker_id: str) -> None:
        """Its life is over. Nothing to do when it is not here."""
        model = self._model_of.pop(worker_id, None)
        if model is not None:
            self._of_model[model].index.leave(worker_id)
            self._assumed.forget(worker_id)

    def events(self, message: KVEvents | KVSnapshot) -> None:
        model = self._model_of.get(message.worker_id)
        if model is None:
            return
        index = self._of_model[model].index
        if isinstance(message, KVEvents):
            index.apply(message)
        else:
            index.load(message)

    def frame(self, frame: StepFrame) -> None:
        """Of a current life."""
        model = self._model_of.get(frame.worker_id)
        if model is not None and frame.deltas:
            self._of_model[model].rates.observe(frame)

    def wanted(self, now_s: float) -> list[str]:
        """Workers to ask for a snapshot now; they count as asked."""
        if not self._has_events:
            return []
        return [worker_id for knowledge in self._of_model.values() for worker_id in knowledge.index.wanted(now_s)]

    def sweep(self) -> None:
        """Some of the work of forgetting workers that are gone. Call it several times a second."""
        for knowledge in self._of_model.values():
            knowledge.index.sweep()

    def unaware(self) -> dict[str, str]:
        """Workers that are routed to without (all of) their cache, and why."""
        return {name: why for knowledge in self._of_model.values() for name, why in knowledge.index.lost().items()}

    def check_integrity(self) -> None:
        for knowledge in self._of_model.values():
            knowledge.index.check_integrity()
            knowledge.backlog.check_integrity()

    # -- requests --

    def placed(self, request: Request, placement: Placement) -> None:
        """It is on its way to that worker."""
        worker_id = placement.worker_id
        knowledge = self.of_model(request.model)
        num_left = len(request.prompt_token_ids) - (placement.num_cached_tokens or 0)
        knowledge.backlog.add(request.request_id, worker_id, num_left)
        if self._has_events:
            knowledge.index.predict(request.request_id, worker_id, request.block_hashes)
        else:
            self._assume(knowledge, worker_id, request)

    def _assume(self, knowledge: Knowledge, worker_id: str, request: Request) -> None:
        card = self._cards[worker_id]
        new, gone = self._assumed.use(worker_id, request.block_hashes, card.kv_capacity_tokens // card.block_size)
        if not new and not gone:
            return
        self._numbers[worker_id] += 1
        changes = (BlocksRemoved(0, gone), BlocksStored(0, new))
        incarnation = knowledge.index.incarnation_of(worker_id)
        if incarnation is not None:
            number = self._numbers[worker_id]
            knowledge.index.apply(
                KVEvents(worker_id=worker_id, incarnation=incarnation, number=number, changes=changes)
            )

    def computed(self, request: Request, delta: TokenDelta) -> None:
        """Some of its prompt is done."""
        knowledge = self.of_model(request.model)
        if delta.num_prefill_tokens:
            knowledge.backlog.compute(request.request_id, delta.num_prefill_tokens)
        if delta.num_cached_tokens is not None:
            knowledge.observe_hit(delta.num_cached_tokens, len(request.prompt_token_ids))

    def settled(self, request: Request) -> None:
        """Its first token is out, or its worker has it no longer."""
        knowledge = self.of_model(request.model)
        knowledge.backlog.remove(request.request_id)
        knowledge.index.predictions.settle(request.request_id)

    def ended(self, request: Request, num_output_tokens: int) -> None:
        self.of_model(request.model).rates.ended(num_output_tokens)
