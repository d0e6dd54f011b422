"""Property: the skipping scheduler and engine are the plain ones after as many single steps: plans, blocks, tokens."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.clock import ManualClock
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, SamplingParams, TokenDelta
from tokenmill.core.scheduling import SchedulerLimits
from tokenmill.cost.steptime.shape import StepShape
from tokenmill.engine.engine import Engine
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.runners.modelled import ModelledRunner
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.engine.scheduler import Scheduler
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.skipping import SkippingScheduler
from tokenmill.engine.skipping_engine import SkippingEngine

VOCAB = 97
FULL = CacheGroup("full", GroupKind.FULL, 64)
WINDOWS = (
    FULL,
    CacheGroup("window", GroupKind.SLIDING_WINDOW, 64, window_tokens=7),
    CacheGroup("state", GroupKind.COMPRESSOR_STATE, 16, window_tokens=1),
    CacheGroup("open", GroupKind.COMPRESSOR_STATE, 16, window_tokens=0, is_required=False),
)
TIMES = LinearStepTime(2e-3, 5e-5)


def count_on(sequence: Sequence, num_tokens: int) -> list[int]:
    last = sequence.token_ids[-1]
    return [(last + 1 + index) % VOCAB for index in range(num_tokens)]


def card(block_size: int) -> ModelCard:
    return ModelCard(
        name="m",
        architecture="counting",
        max_model_len=400,
        kv_capacity_tokens=400,
        max_num_seqs=4,
        vocab_size=VOCAB,
        block_size=block_size,
        weights_version="counting",
    )


def make_kv(groups: tuple[CacheGroup, ...], num_blocks: int, block_size: int, caching: bool) -> KVCacheManager:
    return KVCacheManager(
        groups, {g.name: num_blocks for g in groups}, block_size, enable_prefix_caching=caching, retention_interval=1
    )


class Pair:
    """The plain engine and the skipping one, fed alike."""

    def __init__(
        self, groups: tuple[CacheGroup, ...], num_blocks: int, block_size: int, limits: SchedulerLimits, caching: bool
    ) -> None:
        self.clock, self.skip_clock = ManualClock(), ManualClock()
        self.plain_scheduler = Scheduler(limits, make_kv(groups, num_blocks, block_size, caching))
        self.plain = Engine(
            card(block_size),
            self.plain_scheduler,
            ModelledRunner(VOCAB, lambda plan: TIMES.step_s(StepShape.of_plan(plan)), self.clock.advance),
            self.clock,
            context_weight=0.01,
        )
        self.skip_scheduler = SkippingScheduler(limits, make_kv(groups, num_blocks, block_size, caching), count_on)
        self.skip = SkippingEngine(
            card(block_size),
            self.skip_scheduler,
            self.skip_clock,
            step_time=TIMES,
            pace=self.skip_clock.advance,
            context_weight=0.01,
        )
        self.tokens: dict[str, list[int]] = {}
        self.skip_tokens: dict[str, list[int]] = {}
        self.ends: dict[str, float] = {}
        self.skip_ends: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.skip_seconds: dict[str, float] = {}

    def add(self, request: Request) -> None:
        self.plain.add(request)
        self.skip.add(request)

    def abort(self, request_id: str) -> None:
        assert self.plain.abort(request_id) == self.skip.abort(request_id)

    def run(self, most_steps: int) -> None:
        """One span of the skipping engine, and as many single steps of the plain one; then both must look alike."""
        span = self.skip.begin()
        num_steps = 1 if span is None else min(span.num_steps, most_steps)
        self.skip.num_steps = num_steps
        self.note(self.skip.step(), self.skip_tokens, self.skip_ends, self.skip_seconds, self.skip_clock.now())
        for _ in range(num_steps):
            self.note(self.plain.step(), self.tokens, self.ends, self.seconds, self.clock.now())
        self.compare()

    @staticmethod
    def note(
        deltas: list[TokenDelta],
        tokens: dict[str, list[int]],
        ends: dict[str, float],
        seconds: dict[str, float],
        now_s: float,
    ) -> None:
        for delta in deltas:
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            seconds[delta.request_id] = seconds.get(delta.request_id, 0.0) + delta.seconds
            if delta.finish_reason is not None:
                assert delta.request_id not in ends
                ends[delta.request_id] = now_s

    def compare(self) -> None:
        self.skip_scheduler.coasting()  # brings them up to date
        assert self.tokens == self.skip_tokens
        assert self.skip_ends == pytest.approx(self.ends)
        assert self.skip_clock.now() == pytest.approx(self.clock.now())
        assert self.plain.stats() == self.skip.stats()
        plain, skip = self.plain_scheduler, self.skip_scheduler
        assert [s.request_id for s in plain._running] == [s.request_id for s in skip._running]
        assert [s.request_id for s in plain._waiting] == [s.request_id for s in skip._waiting]
        for one, other in zip(plain._running, skip._running, strict=True):
            assert one.token_ids == other.token_ids and one.num_computed_tokens == other.num_computed_tokens
            assert plain.kv.block_tables(one.request_id) == skip.kv.block_tables(one.request_id)
        for name, pool in plain.kv.pools.items():
            mirror = skip.kv.pools[name]
            assert pool._free == mirror._free and list(pool._cached) == list(mirror._cached)
            assert pool._block_of == mirror._block_of
        skip.check_integrity()

    def compare_bills(self) -> None:
        assert self.skip_seconds == pytest.approx(self.seconds, rel=0.02, abs=1e-4)
        assert self.skip.held_s == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    groups=st.sampled_from([(FULL,), WINDOWS]),
    block_size=st.sampled_from([1, 4, 8]),
    caching=st.booleans(),
    is_tight=st.booleans(),
)
def test_a_span_is_as_many_single_steps(
    seed: int, groups: tuple[CacheGroup, ...], block_size: int, caching: bool, is_tight: bool
) -> None:
    rng = random.Random(seed)
    limits = SchedulerLimits(
        max_num_seqs=rng.randint(1, 4),
        max_num_batched_tokens=rng.randint(4, 40),
        enable_inflight_sharing=rng.random() < 0.7,
    )
    num_blocks = -(-130 // block_size) if is_tight else 1200
    pair = Pair(groups, num_blocks, block_size, limits, caching)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    num_added = 0
    for _ in range(40):
        if num_added < 12 and rng.random() < 0.5:
            pair.add(random_request(rng, f"r{num_added}", shared))
            num_added += 1
        if num_added and rng.random() < 0.05:
            pair.abort(f"r{rng.randrange(num_added)}")
        pair.run(rng.randint(1, 30))
    while pair.plain.has_work():
        pair.run(10**6)
    assert not pair.skip.has_work()


def random_request(rng: random.Random, request_id: str, shared: list[int]) -> Request:
    prompt = shared[: rng.choice([0, 8, 24, 40])] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]
    watches = rng.random() < 0.2
    return Request(
        request_id=request_id,
        model="m",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=rng.randint(1, 45), ignore_eos=not watches),
        eos_token_ids=(5,) if watches else (),
        priority=rng.choice([0, 0, 0, 1]),
    )


def test_bills_of_a_span_are_those_of_its_steps() -> None:
    pair = Pair((FULL,), 1000, 8, SchedulerLimits(4, 64), caching=True)
    rng = random.Random(3)
    for index in range(12):
        pair.add(random_request(rng, f"r{index}", []))
        pair.run(rng.randint(1, 20))
    while pair.plain.has_work():
        pair.run(10**6)
    pair.compare_bills()


def test_a_long_quiet_batch_takes_few_spans() -> None:
    pair = Pair((FULL,), 1000, 8, SchedulerLimits(4, 512), caching=True)
    for index in range(4):
        pair.add(
            Request(
                request_id=f"r{index}",
                model="m",
                prompt_token_ids=[index] * 20,
                sampling=SamplingParams(max_tokens=200, ignore_eos=True),
            )
        )
    num_spans = 0
    while pair.skip.has_work():
        pair.run(10**6)
        num_spans += 1
    assert num_spans <= 3, f"{num_spans} spans for 200 steps"
