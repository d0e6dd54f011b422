"""Router policies: the built-ins pass the conformance suite, and the suite catches policies that break its rules."""

import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.operations.ops_fakes import make_request
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.conformance import check_router_policy, random_request, random_snapshot
from tokenmill.operations.router.least_loaded import LeastLoaded
from tokenmill.operations.router.registry import ROUTER_POLICIES, load_policy
from tokenmill.operations.router.round_robin import RoundRobin


@pytest.mark.parametrize("name", ["round_robin", "least_loaded", "kv_aware", "session", "cost_aware"])
def test_built_in_policies_conform(name: str) -> None:
    check_router_policy(lambda seed: load_policy(name, seed))


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'round_robin'"):
        load_policy("round_robbin", 0)
    assert {"least_loaded", "round_robin"} <= set(ROUTER_POLICIES.names())


def test_round_robin_takes_turns() -> None:
    rng = random.Random(0)
    snapshot = random_snapshot(rng, num_placed=0, num_members=3)
    chosen = [
        RoundRobin(seed=0).choose(make_request("r"), FleetSnapshot("m", turn, snapshot.members)).worker_id
        for turn in range(6)
    ]
    assert chosen == [member.worker_id for member in snapshot.members] * 2


def test_least_loaded_takes_the_least() -> None:
    rng = random.Random(3)
    for case in range(50):
        snapshot = random_snapshot(rng, num_placed=case)
        chosen = LeastLoaded(seed=1).choose(random_request(rng, case), snapshot).worker_id
        best = min(snapshot.members, key=lambda member: (member.load, member.num_pending_tokens))
        assert chosen == best.worker_id


class OfFirst:
    def __init__(self, *, seed: int = 0) -> None:
        pass

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        return Placement(snapshot.members[0].worker_id)


class OfGlobalDice(OfFirst):
    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        return Placement(random.choice(snapshot.members).worker_id)


class OfNowhere(OfFirst):
    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        return Placement("nobody")


class OfName(OfFirst):
    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        return snapshot.members[0].worker_id  # type: ignore[return-value]


class OfFixedName(OfFirst):
    """Remembers the first worker it saw."""

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        if len(snapshot.members) == 1:
            return Placement("w0")
        return Placement(snapshot.members[0].worker_id)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (OfFirst, "no starvation"),
        (OfGlobalDice, "deterministic"),
        (OfNowhere, "total"),
        (OfName, "not a Placement"),
        (OfFixedName, "total|single"),
    ],
)
def test_the_suite_catches_rule_breakers(policy: type[OfFirst], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_router_policy(lambda seed: policy(seed=seed))


def test_ties_of_least_loaded_are_spread_by_the_seed() -> None:
    rng = random.Random(9)
    snapshot = random_snapshot(rng, num_placed=0, num_members=1)
    twin = FleetSnapshot("m", 0, tuple(_renamed(snapshot, name) for name in ("a", "b", "c", "d")))
    requests = [random_request(rng, case) for case in range(200)]
    picks = [tuple(LeastLoaded(seed=seed).choose(r, twin).worker_id for r in requests) for seed in (1, 2)]
    assert picks[0] != picks[1]
    assert min(Counter(picks[0]).values()) > 25


def _renamed(snapshot: FleetSnapshot, name: str) -> object:
    return msgspec.structs.replace(snapshot.members[0], worker_id=name)


def test_a_policy_of_a_separate_package_is_found_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_router.py").write_text(
        "from tokenmill.operations.router.base import Placement\n"
        "class Reversed:\n"
        "    def __init__(self, *, seed=0): self._seed = seed\n"
        "    def choose(self, request, snapshot):\n"
        "        return Placement(snapshot.members[-1 - snapshot.num_placed % len(snapshot.members)].worker_id)\n"
    )
    info = tmp_path / "acme_router-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-router\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tokenmill.router_policies]\nreversed = acme_router:Reversed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "reversed" in ROUTER_POLICIES.names()
    check_router_policy(lambda seed: load_policy("reversed", seed))
