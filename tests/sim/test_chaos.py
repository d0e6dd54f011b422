"""Random fault schedules: all invariants hold, a seed is the whole case, and planted bugs are found."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tokenmill.operations.fleet import Fleet, FrameOrigin
from tokenmill.operations.worker.loop import WorkerLoop
from tokenmill.sim.chaos import run_schedule
from tokenmill.sim.faults import Fault, FaultKind

QUICK, IN_CI, SLOW = range(0, 20), range(0, 500), range(0, 10_000)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of faults are logged as production would log them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_all(seeds: range) -> None:
    """`python -m pytest tests/sim/test_chaos.py -k one_seed` after setting SEED replays one that failed."""
    totals = {"requests": 0, "failed": 0, "faults": 0, "restarts": 0, "lost": 0}
    for seed in seeds:
        try:
            result = run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} (run_schedule({seed}) replays it): {error}") from error
        totals["requests"] += result.num_requests
        totals["failed"] += result.num_failed
        totals["faults"] += result.num_faults
        totals["restarts"] += result.num_restarts
        totals["lost"] += result.num_messages_lost
    assert totals["failed"] < totals["requests"] / 2, f"{totals}: schedules that break everything test little"
    assert min(totals.values()) > 0, f"{totals}: something never happened"


def test_a_few_schedules() -> None:
    """S19, S32: drained to idle no block is held, and counting tokens show every doubled or missing one."""
    run_all(QUICK)


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_five_hundred_schedules() -> None:
    run_all(IN_CI)


@pytest.mark.slow
def test_ten_thousand_schedules() -> None:
    run_all(SLOW)


@pytest.mark.parametrize("seed", [3, 7, 110])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert run_schedule(seed) == run_schedule(seed)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_each_fault_alone(kind: FaultKind) -> None:
    """Severe, on every worker that may be there, while requests run."""
    amounts = {FaultKind.SLOW: 30.0, FaultKind.LATE: 0.5, FaultKind.SKEW: 4.0, FaultKind.PRICE: 2.0}
    for seed in range(2):
        run_schedule(seed, [Fault(0.4, kind, "worker-0000", 2.5, amounts.get(kind, 0.6))])


def finds_something(seeds: range = range(40)) -> bool:
    for seed in seeds:
        try:
            run_schedule(seed)
        except AssertionError:
            return True
    return False


def test_copies_that_are_taken_for_news_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Fleet.frame

    def gullible(self: Fleet, frame: object, now_s: float) -> FrameOrigin:
        origin = judge(self, frame, now_s)
        return FrameOrigin.CURRENT if origin is FrameOrigin.COPY else origin

    monkeypatch.setattr(Fleet, "frame", gullible)
    assert finds_something()


def test_losses_that_are_passed_over_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Fleet.frame

    def careless(self: Fleet, frame: object, now_s: float) -> FrameOrigin:
        origin = judge(self, frame, now_s)
        return FrameOrigin.CURRENT if origin is FrameOrigin.GAP else origin

    monkeypatch.setattr(Fleet, "frame", careless)
    assert finds_something()


def test_aborts_that_are_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that starts over without dropping what it runs."""
    monkeypatch.setattr(WorkerLoop, "_drop_all", lambda self: None)
    assert finds_something(range(120))
