"""A fleet under a schedule of faults, checked as it goes. A seed is the whole case: the same seed is the same run.

Invariants: every request ends exactly once, by its tokens, each once and in order, or with a reason; none by its
deadline; the books of dispatcher, schedulers and pools agree at every check; at the end no block is held, and the
ledger explains every second of every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from random import Random

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.engine.skipping_engine import SkippingEngine
from tokenmill.operations.config import OperationsConfig, RestartConfig
from tokenmill.sim.faults import Fault, random_faults
from tokenmill.sim.kinds import worker_kind
from tokenmill.sim.network import NetworkConfig
from tokenmill.sim.twin import Twin, TwinConfig, WorkerKind
from tokenmill.workloads.conductor import ClosedLoop, Conductor
from tokenmill.workloads.definition import Workload
from tokenmill.workloads.lengths import parse_lengths
from tokenmill.workloads.sessions import generate

_RATE = DeviceRate(usd_per_hour=3.6, watts=100.0)
_CHECK_EVERY = 97  # events
#: Reasons that a fleet in trouble may give; "deadline" is not one of them.
_REASONS = {"worker_lost", "unavailable", "overloaded"}
_BLOCK = 16
_GROUPS = (
    (CacheGroup("full", GroupKind.FULL, 1024),),
    (
        CacheGroup("window", GroupKind.SLIDING_WINDOW, 512, window_tokens=31),
        CacheGroup("full", GroupKind.COMPRESSED, 512),
        CacheGroup("state", GroupKind.COMPRESSOR_STATE, 64, window_tokens=1),
    ),
)


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """What happened under one schedule, for the summary of many."""

    seed: int
    num_requests: int
    num_failed: int
    num_faults: int
    num_restarts: int
    num_messages_lost: int
    digest: str


def run_schedule(seed: int, faults: list[Fault] | None = None, *, num_sessions: int = 14) -> ChaosResult:
    """One schedule to its end; AssertionError names what broke. faults: None: drawn from the seed."""
    rng = Random(f"chaos/{seed}")
    twin = _make_twin(rng, seed, faults, num_sessions)
    count = 0

    def watch() -> None:
        nonlocal count
        count += 1
        if count % _CHECK_EVERY == 0:
            check(twin)

    twin.run(settle_s=5.0, watch=watch)
    check_end(twin)
    records = twin.load.records
    return ChaosResult(
        seed,
        len(records),
        sum(not record.is_ok for record in records),
        twin.mishaps.num_happened,
        twin.supervisor.num_restarts,
        twin.network.num_lost,
        twin.decisions.digest,
    )


def check(twin: Twin) -> None:
    """What must hold between any two events."""
    twin.frontend.core.check_integrity()
    for worker in twin.supervisor.workers.values():
        if worker.is_alive and worker.engine.span is None:
            worker.engine.check_integrity()
    limit_s = twin.config.operations.request_timeout_s
    assert twin.load.longest_wait_s() <= limit_s, "a request starves"


def check_end(twin: Twin) -> None:
    """Everything is over and everybody has had a moment to hear of it."""
    check(twin)
    assert twin.load.num_open == 0 and len(twin.frontend.core.in_flight) == 0
    reasons = {record.error for record in twin.load.records if record.error is not None}
    assert reasons <= _REASONS, f"requests ended by {reasons - _REASONS}"
    for worker in twin.supervisor.workers.values():
        if worker.is_alive and not worker.engine.has_work():
            _check_idle(worker.engine, worker.worker_id)
    balance = twin.frontend.ledger.check_balance(twin.queue.now() + 10.0)  # clocks may be ahead
    assert balance.is_balanced, f"{balance}"


def _check_idle(engine: SkippingEngine, worker_id: str) -> None:
    for pool in engine.kv.pools.values():
        assert pool.num_active == 0, f"{worker_id}: {pool.num_active} blocks of {pool.name} are held by nobody"
    assert abs(engine.held_s) < 1e-6, f"{worker_id}: {engine.held_s} s are in nobody's bill"


def _make_twin(rng: Random, seed: int, faults: list[Fault] | None, num_sessions: int) -> Twin:
    kind = _worker_kind(rng)
    operations = OperationsConfig(
        router=rng.choice(["round_robin", "least_loaded"]),
        router_seed=seed,
        max_queued_requests=rng.choice([4, 1000]),
        request_timeout_s=300.0,
        heartbeat_interval_s=0.5,
        heartbeat_timeout_s=rng.choice([2.0, 4.0]),
        stall_timeout_s=2.0,
        start_timeout_s=10.0,
        worker_wait_timeout_s=rng.choice([0.5, 20.0]),
        restart=RestartConfig(first_delay_s=0.1, max_crashes=50),
    )
    config = TwinConfig(
        (kind,),
        operations,
        _RATE,
        NetworkConfig(latency_s=rng.choice([5e-5, 2e-3]), bytes_per_s=rng.choice([1e7, 1e10])),
        seed=seed,
        keeps_all=rng.random() < 0.5,
        keeps_decisions=True,
    )
    conductor = Conductor(
        islice(generate(_workload(rng), seed=seed), num_sessions), ClosedLoop(rng.randint(2, 12), ramp_s=1.0)
    )
    workers = [f"worker-{index:04d}" for index in range(kind.num_workers)]
    if faults is None:
        faults = random_faults(rng, workers, rng.randint(1, 6), until_s=4.0)
    return Twin(config, conductor, faults=faults, ledger=Ledger())


def _worker_kind(rng: Random) -> WorkerKind:
    engine = EngineConfig(
        max_num_seqs=rng.choice([2, 8]),
        max_num_batched_tokens=rng.choice([64, 512]),
        block_size=_BLOCK,
        enable_prefix_caching=rng.random() < 0.8,
    )
    groups, is_quiet = rng.choice(_GROUPS), rng.random() < 0.5
    num_blocks = rng.choice([60, 400])
    budget_bytes = num_blocks * sum(group.bytes_per_block for group in groups) * 2
    times = LinearStepTime(rng.choice([2e-3, 1e-2]), 1e-4, 1e-7)
    return worker_kind(
        engine,
        times,
        rng.randint(1, 4),
        load_s=rng.choice([0.05, 1.0]),
        is_quiet=is_quiet,
        name="m",
        vocab_size=1000,
        max_model_len=480,
        groups=groups,
        budget_bytes=budget_bytes,
    )


def _workload(rng: Random) -> Workload:
    return Workload(
        name="chaos",
        version=1,
        digest="",
        description="",
        prefix_tokens=parse_lengths(rng.choice([0, 48]), "prefix_tokens"),
        first_tokens=parse_lengths(rng.choice([20, 90]), "first_tokens"),
        output_tokens=parse_lengths(rng.choice([8, 60]), "output_tokens"),
        turns=parse_lengths(rng.choice([1, 3]), "turns"),
        turn_tokens=parse_lengths(10, "turn_tokens"),
        gap_s=parse_lengths(0.05, "gap_s"),
    )
