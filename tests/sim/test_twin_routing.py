"""Routing policies on virtual time: groups of long prompts over workers whose caches hold a third of them each."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tokenmill.cost.rates import DeviceRate
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.operations.config import OperationsConfig
from tokenmill.sim.faults import Fault, FaultKind
from tokenmill.sim.kinds import worker_kind
from tokenmill.sim.twin import Twin, TwinConfig
from tokenmill.workloads.conductor import ClosedLoop, Conductor
from tokenmill.workloads.content import Segment
from tokenmill.workloads.sessions import Session, Turn

NUM_WORKERS, NUM_BLOCKS, BLOCK = 8, 1536, 16
ISL, SHARED, OSL = 3000, 2400, 32


def sessions(seed: int, num: int) -> Iterator[Session]:
    rng = random.Random(seed)
    for i in range(num):
        group = rng.randrange(24)
        turns = tuple(
            Turn((Segment(f"g{group}", SHARED), Segment(f"s{i}t{t}", ISL - SHARED)), OSL, gap_s=0.08) for t in range(4)
        )
        yield Session(f"s{i}", turns)


def run(router: str, seed: int = 0, num: int = 256, faults: tuple[Fault, ...] = (), **operations: object) -> Twin:
    kind = worker_kind(
        EngineConfig(max_num_seqs=64, max_num_batched_tokens=8192),
        LinearStepTime(fixed_s=6e-3, per_token_s=2e-5),
        NUM_WORKERS,
        is_quiet=False,
        name="m",
        vocab_size=32000,
        max_model_len=8192,
        budget_bytes=NUM_BLOCKS * BLOCK * 1024,
    )
    config = OperationsConfig(router=router, router_seed=seed, **operations)  # type: ignore[arg-type]
    twin = Twin(
        TwinConfig((kind,), config, DeviceRate(usd_per_hour=3.6, watts=100.0)),
        Conductor(sessions(seed, num), ClosedLoop(64)),
        faults=faults,
    )
    twin.run()
    twin.frontend.core.check_integrity()
    return twin


def cached_share(twin: Twin) -> float:
    records = twin.load.records
    return sum(r.num_cached_tokens for r in records) / sum(r.num_prompt_tokens for r in records)


def ttft_p99_s(twin: Twin) -> float:
    times = sorted(r.ttft_s for r in twin.load.records if r.ttft_s is not None)
    return times[int(0.99 * len(times))]


@pytest.mark.ci
def test_cost_aware_computes_less_and_answers_sooner() -> None:
    """At equal load: against taking turns, and against the additive token cost that others use."""
    turns, additive, ours = run("round_robin"), run("kv_aware"), run("cost_aware")
    assert cached_share(ours) > max(cached_share(additive), 1.5 * cached_share(turns))
    assert ttft_p99_s(ours) < 0.9 * ttft_p99_s(additive)
    assert ours.end_s < min(additive.end_s, turns.end_s)
    without_events = run("cost_aware", kv_events=False)
    assert cached_share(without_events) > 1.5 * cached_share(turns)


def test_the_same_seed_routes_alike_and_a_lost_worker_loses_nothing() -> None:
    deaths = tuple(Fault(0.5 + at / 4, FaultKind.CRASH, f"worker-000{at}") for at in range(4))
    digests = set()
    for _ in range(2):
        twin = run("cost_aware", num=48, faults=deaths)
        assert [r.error for r in twin.load.records if r.error] == [] and len(twin.load.records) == 48 * 4
        assert twin.frontend.core.num_migrations > 0
        digests.add(twin.decisions.digest)
    assert len(digests) == 1
