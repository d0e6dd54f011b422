"""What every router policy must do, as one function that a separate package runs on its own policy in its tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, SamplingParams
from tokenmill.core.wire import WorkerStats
from tokenmill.operations.members import FleetSnapshot, MemberState, MemberView
from tokenmill.operations.router.base import Placement, RouterPolicy

PolicyFactory = Callable[[int], RouterPolicy]


def check_router_policy(make: PolicyFactory, *, num_cases: int = 200) -> None:
    """Raise AssertionError, naming the rule, unless the policy that `make(seed)` builds obeys all of them."""
    _check_total(make, num_cases)
    _check_deterministic(make, num_cases)
    _check_single(make)
    _check_no_starvation(make)


def _check_total(make: PolicyFactory, num_cases: int) -> None:
    rng, policy = random.Random(1), make(1)
    for case in range(num_cases):
        snapshot = random_snapshot(rng, num_placed=case)
        placement = policy.choose(random_request(rng, case), snapshot)
        assert isinstance(placement, Placement), f"total: choose returned {placement!r}, not a Placement"
        possible = [member.worker_id for member in snapshot.members]
        assert placement.worker_id in possible, f"total: chose {placement.worker_id!r} out of {possible}"


def _check_deterministic(make: PolicyFactory, num_cases: int) -> None:
    """Two instances with one seed agree, whatever the global random state is."""
    runs = []
    for global_seed in (1, 2):
        state = random.getstate()
        random.seed(global_seed)
        rng, policy = random.Random(7), make(3)
        runs.append(
            [
                policy.choose(random_request(rng, case), random_snapshot(rng, num_placed=case))
                for case in range(num_cases)
            ]
        )
        random.setstate(state)
    assert runs[0] == runs[1], "deterministic: the same seed and calls gave different placements"


def _check_single(make: PolicyFactory) -> None:
    rng, policy = random.Random(5), make(5)
    for case in range(20):
        snapshot = random_snapshot(rng, num_members=1, num_placed=case)
        chosen = policy.choose(random_request(rng, case), snapshot).worker_id
        assert chosen == snapshot.members[0].worker_id, f"single: chose {chosen!r}, which does not exist"


def _check_no_starvation(make: PolicyFactory, num_members: int = 4, num_requests: int = 400) -> None:
    """Unrelated requests of one size, load counted as it comes: each of four workers gets at least an eighth."""
    rng, policy = random.Random(11), make(11)
    given: Counter[str] = Counter()
    for case in range(num_requests):
        members = tuple(_loaded_member(index, given[f"w{index}"]) for index in range(num_members))
        request = random_request(rng, case, num_tokens=64)
        given[policy.choose(request, FleetSnapshot("m", case, members)).worker_id] += 1
    least = min(given[f"w{index}"] for index in range(num_members))
    share = num_requests // (2 * num_members)
    assert least >= share, f"no starvation: placements {dict(given)}, expected at least {share} each"


def random_request(rng: random.Random, case: int, num_tokens: int | None = None) -> Request:
    """A request nobody has seen before."""
    size = num_tokens or rng.randint(1, 300)
    return Request(
        request_id=f"r{case}",
        model="m",
        prompt_token_ids=[rng.randrange(1000) for _ in range(size)],
        sampling=SamplingParams(max_tokens=rng.randint(1, 64)),
        seed=rng.getrandbits(32),
        priority=rng.choice([0, 0, 1]),
        session_id=rng.choice([None, "s1", "s2"]),
    )


def random_snapshot(rng: random.Random, *, num_placed: int, num_members: int | None = None) -> FleetSnapshot:
    """1 to 6 ready workers with any load."""
    count = num_members or rng.randint(1, 6)
    ids = sorted(rng.sample(range(100), count))
    return FleetSnapshot("m", num_placed, tuple(_member(rng, f"w{index:02d}") for index in ids))


def _member(rng: random.Random, worker_id: str) -> MemberView:
    running, waiting = rng.randint(0, 8), rng.randint(0, 3)
    return MemberView(
        worker_id=worker_id,
        model="m",
        incarnation=rng.randint(0, 3),
        state=MemberState.READY,
        since_s=0.0,
        last_seen_s=1.0,
        progress_s=1.0,
        card=_CARD,
        stats=WorkerStats(num_running=running, num_waiting=waiting, kv_usage=rng.random()),
        num_in_flight=running + waiting,
        num_unseen=rng.randint(0, 2),
        num_pending_tokens=rng.randint(0, 5000),
    )


def _loaded_member(index: int, num_in_flight: int) -> MemberView:
    return MemberView(
        worker_id=f"w{index}",
        model="m",
        incarnation=0,
        state=MemberState.READY,
        since_s=0.0,
        last_seen_s=1.0,
        progress_s=1.0,
        card=_CARD,
        stats=WorkerStats(num_running=num_in_flight),
        num_in_flight=num_in_flight,
        num_pending_tokens=64 * num_in_flight,
    )


_CARD = ModelCard(
    name="m",
    architecture="modelled",
    max_model_len=4096,
    kv_capacity_tokens=65536,
    max_num_seqs=8,
    vocab_size=1000,
    block_size=16,
    weights_version="0",
)
