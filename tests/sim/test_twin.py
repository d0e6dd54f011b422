"""The twin as a whole: the same seed is the same run, spans change nothing, trouble shows where it should."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from tokenmill.cost.rates import DeviceRate
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.operations.config import OperationsConfig
from tokenmill.sim.decisions import first_difference
from tokenmill.sim.faults import Fault, FaultKind
from tokenmill.sim.kinds import worker_kind
from tokenmill.sim.twin import Twin, TwinConfig, WorkerKind
from tokenmill.workloads.conductor import ClosedLoop, Conductor
from tokenmill.workloads.library import load_workload
from tokenmill.workloads.request_metrics import summarise
from tokenmill.workloads.sessions import generate
from tokenmill.workloads.synthetic import parse_lengths_text, synthetic_workload

TIMES = LinearStepTime(fixed_s=5e-3, per_token_s=1e-5)
RATE = DeviceRate(usd_per_hour=3.6, watts=100.0)
SIZE: dict[str, Any] = {"name": "m", "vocab_size": 32000, "max_model_len": 32768, "budget_bytes": 400_000 * 1024}


def kind(num_workers: int = 2, *, is_quiet: bool = False, **engine: Any) -> WorkerKind:
    config = EngineConfig(**({"max_num_seqs": 16, "max_num_batched_tokens": 2048} | engine))
    return worker_kind(config, TIMES, num_workers, is_quiet=is_quiet, **SIZE)


def uniform(num: int, concurrency: int, isl: int = 200, osl: int = 40) -> Conductor:
    workload = synthetic_workload(parse_lengths_text(str(isl), ""), parse_lengths_text(str(osl), ""))
    return Conductor(islice(generate(workload), num), ClosedLoop(concurrency))


def make(
    conductor: Conductor, *, kinds: WorkerKind | None = None, router: str = "least_loaded", **changes: Any
) -> TwinConfig:
    return TwinConfig(
        (kinds or kind(),), OperationsConfig(router=router), RATE, **({"keeps_decisions": True} | changes)
    )


def run(conductor: Conductor, faults: tuple[Fault, ...] = (), **changes: Any) -> Twin:
    twin = Twin(make(conductor, **changes), conductor, faults=faults)
    twin.run(settle_s=1.0)
    return twin


def test_the_same_seed_makes_the_same_decisions() -> None:
    runs = [run(Conductor(islice(generate(load_workload("chat")), 12), ClosedLoop(6))) for _ in range(2)]
    assert runs[0].decisions.digest == runs[1].decisions.digest
    assert first_difference(runs[0].decisions.lines, runs[1].decisions.lines) is None
    other = run(Conductor(islice(generate(load_workload("chat"), seed=1), 12), ClosedLoop(6)))
    assert str(first_difference(runs[0].decisions.lines, other.decisions.lines)).startswith("decision ")


def test_a_request_alone_takes_as_long_as_its_steps() -> None:
    twin = run(uniform(1, 1), kinds=kind(1))
    (record,) = twin.load.records
    assert record.ttft_s == pytest.approx(TIMES.fixed_s + 200 * TIMES.per_token_s, abs=3e-4)
    assert record.tpot_s == pytest.approx(TIMES.fixed_s + TIMES.per_token_s, rel=0.01)
    assert len(record.chunk_s) == record.num_output_tokens == 40


def test_tokens_told_per_request_change_neither_latencies_nor_the_bill() -> None:
    each = run(uniform(60, 12))
    ends = run(uniform(60, 12), kinds=kind(is_quiet=True), keeps_all=False)
    one, other = summarise(each.load.records, None), summarise(ends.load.records, None)
    for name in ("ttft_s_p50", "tpot_s_p50", "e2e_s_p90", "output_tput_per_s"):
        assert other[name] == pytest.approx(one[name], rel=0.02), name
    bills = [twin.frontend.ledger.totals().charged.usd for twin in (each, ends)]
    assert bills[1] == pytest.approx(bills[0], rel=0.02)
    assert all(twin.frontend.ledger.check_balance(twin.queue.now()).unexplained_s < 1e-6 for twin in (each, ends))


def test_least_loaded_leaves_a_slow_worker_alone() -> None:
    slow = (Fault(0.0, FaultKind.SLOW, "worker-0000", 1000.0, 8.0),)
    given = {}
    for router in ("round_robin", "least_loaded"):
        twin = run(uniform(80, 16), slow, router=router)
        places = [line.split("\t")[3] for line in twin.decisions.lines if "\tplace\t" in line]
        given[router] = places.count("worker-0000/0")
    assert given["least_loaded"] < given["round_robin"] == 40


def test_a_crash_moves_requests_and_the_bill_still_adds_up() -> None:
    twin = run(uniform(60, 12), (Fault(0.2, FaultKind.CRASH, "worker-0000"),))
    assert twin.supervisor.num_restarts == 1
    assert {record.error for record in twin.load.records} <= {None, "worker_lost"}
    assert sum(record.is_ok for record in twin.load.records) >= 48
    assert twin.frontend.ledger.check_balance(twin.queue.now()).is_balanced


def test_price_changes_hold_from_then_on() -> None:
    plain = run(uniform(40, 8)).frontend.ledger.totals().whole.usd
    dear = run(uniform(40, 8), (Fault(0.0, FaultKind.PRICE, None, 0.0, 10.0),)).frontend.ledger.totals().whole.usd
    assert plain * 1.5 < dear < plain * 10


def test_a_prefix_that_prompts_share_is_found() -> None:
    workload = synthetic_workload(parse_lengths_text("256", ""), parse_lengths_text("8", ""), num_shared=128)
    twin = run(Conductor(islice(generate(workload), 20), ClosedLoop(1)), kinds=kind(1))
    assert [record.num_cached_tokens for record in twin.load.records] == [0] + [128] * 19


def test_later_turns_find_their_own_answers() -> None:
    chat = replace(load_workload("chat"), turns=parse_lengths_text("3", ""))
    twin = run(Conductor(islice(generate(chat), 4), ClosedLoop(2)), kinds=kind(1))
    later = [record for record in twin.load.records if record.turn_index > 0]
    assert later and all(record.num_cached_tokens > 0.6 * record.num_prompt_tokens for record in later)


def test_requests_that_come_together_pass_the_door_one_after_another() -> None:
    """A worker that could begin all of them at once still sees the last one seven doors later."""
    plain, doored = run(uniform(8, 8)), run(uniform(8, 8), door_s=0.5)
    firsts = [sorted(r.ttft_s for r in twin.load.records) for twin in (plain, doored)]
    assert firsts[1][0] - firsts[0][0] == pytest.approx(0.5, abs=0.1)
    assert firsts[1][-1] == pytest.approx(8 * 0.5, rel=0.1)
