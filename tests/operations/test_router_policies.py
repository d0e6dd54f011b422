"""Policies that read who holds what: siblings together, nobody starved or piled upon, the cheapest placement found."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from tests.operations.ops_fakes import RATE, make_card, make_frame, make_hello, tokens
from tokenmill.core.kv_events import BlocksStored, IndexedGroup, KVEvents, KVFormat, KVSnapshot
from tokenmill.core.request import Request, SamplingParams, TokenDelta
from tokenmill.core.slo import SLO
from tokenmill.core.wire import Abort, Generate, ReportCache
from tokenmill.cost.ledger import Ledger
from tokenmill.operations.actions import Action, Send
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatch import DispatchCore
from tokenmill.operations.router.assumed import AssumedCaches
from tokenmill.operations.router.registry import load_policy
from tokenmill.operations.router.step_rates import StepRates

BLOCK = 16
FORMAT = KVFormat.of(make_card(), ())
BOTH = pytest.mark.parametrize("router", ["kv_aware", "cost_aware"])


def make_core(router: str, num_workers: int, *, slo: SLO | None = None, **config: object) -> DispatchCore:
    """Workers that told of their empty caches."""
    operations = OperationsConfig(router=router, **config)  # type: ignore[arg-type]
    core = DispatchCore(operations, load_policy(router, 1), Ledger(slo), RATE)
    for at in range(num_workers):
        actions = core.handle(make_hello(f"w{at}"), 0.0)
        assert actions == ([Send(f"w{at}", 0, ReportCache())] if operations.kv_events else [])
        if operations.kv_events:
            core.handle(snapshot(f"w{at}"), 0.0)
    return core


def snapshot(worker_id: str, hashes: list[bytes] | None = None, **changes: object) -> KVSnapshot:
    form = msgspec.structs.replace(FORMAT, groups=(IndexedGroup("full"),), **changes)
    return KVSnapshot(worker_id=worker_id, incarnation=0, number=0, format=form, hashes=(hashes or [],))


def holds(core: DispatchCore, worker_id: str, hashes: list[bytes], number: int = 1) -> None:
    events = KVEvents(worker_id=worker_id, incarnation=0, number=number, changes=(BlocksStored(0, hashes),))
    assert core.handle(events, 1.0) == []


def blocks(rng: random.Random, count: int) -> list[bytes]:
    return [rng.randbytes(16) for _ in range(count)]


def make_request(name: str, hashes: list[bytes], max_tokens: int = 16, session_id: str | None = None) -> Request:
    return Request(
        request_id=name,
        model="m",
        prompt_token_ids=[1] * (len(hashes) * BLOCK + 1),
        sampling=SamplingParams(max_tokens=max_tokens),
        block_hashes=hashes,
        session_id=session_id,
    )


def place(core: DispatchCore, request: Request) -> str:
    (sent,) = [a for a in core.submit(request, 1.0) if isinstance(a, Send) and isinstance(a.message, Generate)]
    core.check_integrity()
    return sent.worker_id


@BOTH
def test_a_prompt_goes_where_its_prefix_is(router: str) -> None:
    rng, core = random.Random(0), make_core(router, 4)
    for case in range(20):
        prompt = blocks(rng, 30)
        holds(core, f"w{case % 4}", prompt[:20], number=case // 4 + 1)
        assert place(core, make_request(f"r{case}", prompt)) == f"w{case % 4}"
        core.cancel(f"r{case}")


def test_siblings_that_arrive_together_go_together() -> None:
    """No event can have told of the first one yet (operations C-1, reports 3 and 14)."""
    rng, core = random.Random(1), make_core("cost_aware", 8)
    shared = blocks(rng, 60)
    placed = {place(core, make_request(f"r{i}", shared + blocks(rng, 2))) for i in range(4)}
    assert len(placed) == 1
    other = place(core, make_request("other", blocks(rng, 60)))
    assert other not in placed


@BOTH
@pytest.mark.parametrize("has_events", [True, False])
def test_a_system_prompt_of_all_does_not_draw_all_to_one(router: str, has_events: bool) -> None:
    """A shared system prompt sent everything to one of eight; two of five got nothing (C-1, reports 1 and 2)."""
    rng, core = random.Random(2), make_core(router, 8, kv_events=has_events, max_queued_requests=10_000)
    system = blocks(rng, 8)
    if has_events:
        holds(core, "w3", system)
    given = Counter(place(core, make_request(f"r{i}", system + blocks(rng, 30))) for i in range(200))
    assert min(given.values()) >= 12 and len(given) == 8, given


@BOTH
def test_without_events_caches_are_assumed_from_what_was_sent(router: str) -> None:
    rng, core = random.Random(3), make_core(router, 4, kv_events=False)
    prompt = blocks(rng, 50)
    first = place(core, make_request("a", prompt))
    core.handle(make_frame(first, 0, TokenDelta(request_id="a", token_ids=(1,), num_cached_tokens=0)), 1.1)
    core.cancel("a")
    for i in range(8):
        core.cancel(place_and_name(core, make_request(f"x{i}", blocks(rng, 5))))
    assert place(core, make_request("b", prompt + blocks(rng, 1))) == first


def place_and_name(core: DispatchCore, request: Request) -> str:
    place(core, request)
    return request.request_id


def test_assumed_caches_forget_the_end_of_the_oldest_prompt_first() -> None:
    assumed, names = AssumedCaches(), [bytes([i]) for i in range(8)]
    assert assumed.use("w", names[:4], 6) == ([names[3], names[2], names[1], names[0]], [])
    assert assumed.use("w", names[4:], 6) == ([names[7], names[6], names[5], names[4]], [names[3], names[2]])
    assert assumed.use("w", names[:2], 6) == ([], [])


def test_a_long_queue_at_the_holder_is_worth_some_prefill() -> None:
    """The holder is left once waiting there costs more than computing elsewhere; with an SLO earlier."""
    counts = []
    for slo in (None, SLO(ttft_s=0.06)):
        rng, core = random.Random(4), make_core("cost_aware", 2, slo=slo, max_queued_requests=1000)
        prompt = blocks(rng, 20)
        holds(core, "w0", prompt)
        given = [place(core, make_request(f"r{i}", prompt + blocks(rng, 1))) for i in range(60)]
        assert given[0] == "w0" and "w1" in given
        counts.append(given.index("w1"))
    assert counts[1] < counts[0]


def test_a_worker_of_another_format_is_seen_in_health_and_used_all_the_same() -> None:
    core = make_core("cost_aware", 2)
    core.handle(make_hello("w9"), 0.0)
    core.handle(snapshot("w9", block_size=32), 0.1)
    (reason,) = [r for r in core.health(0.2).reasons if "awareness" in r]
    assert "w9" in reason and "block_size 32 instead of 16" in reason and core.health(0.2).is_healthy
    rng = random.Random(5)
    assert "w9" in {place(core, make_request(f"r{i}", blocks(rng, 3))) for i in range(12)}


def test_a_lost_message_is_asked_for_at_once_and_again() -> None:
    core = make_core("kv_aware", 1)
    events = KVEvents(worker_id="w0", incarnation=0, number=2, changes=())
    ask: list[Action] = [Send("w0", 0, ReportCache())]
    assert core.handle(events, 1.0) == ask
    assert core.tick(1.5) == [] and core.tick(2.1) == ask
    core.handle(snapshot("w0"), 2.2)
    assert core.tick(3.5) == []


def test_sessions_stay_and_sub_agents_go_with_their_parent() -> None:
    core = make_core_of_sessions(6)
    homes = {s: place(core, make_request(f"{s}-0", [], session_id=s)) for s in ("a", "b", "c")}
    for turn in range(1, 4):
        for session, home in homes.items():
            core.cancel(f"{session}-{turn - 1}")
            assert place(core, make_request(f"{session}-{turn}", [], session_id=session)) == home
    child = msgspec.structs.replace(make_request("child", [], session_id="z"), parent_session_id="a")
    core.cancel("a-3")
    assert place(core, child) == homes["a"]
    again = make_core_of_sessions(6)  # another frontend
    assert place(again, make_request("x", [], session_id="b")) == homes["b"]


def make_core_of_sessions(num_workers: int) -> DispatchCore:
    core = DispatchCore(OperationsConfig(router="session"), load_policy("session", 1), Ledger(), RATE)
    for at in range(num_workers):
        assert core.handle(make_hello(f"w{at}"), 0.0) == []
    return core


def test_step_rates_come_from_frames() -> None:
    rates = StepRates()
    assert rates.prefill_token_s > 0 and rates.fixed_s > 0
    rng = random.Random(6)
    for _ in range(400):
        rows, chunk = rng.randint(1, 20), rng.choice([0, 0, 500])
        share = (0.004 + 0.0002 * rows) / rows
        deltas = [TokenDelta(request_id=f"r{i}", token_ids=(1,), seconds=share) for i in range(rows)]
        if chunk:
            deltas.append(
                TokenDelta(request_id="p", num_prefill_tokens=chunk, prefill_s=chunk * 3e-5, seconds=chunk * 3e-5)
            )
        rates.observe(make_frame("w0", 0, *deltas))
    assert rates.row_s == pytest.approx(0.0002, rel=0.01) and rates.fixed_s == pytest.approx(0.004, rel=0.01)
    assert rates.prefill_token_s == pytest.approx(3e-5, rel=0.01)


def test_nothing_is_left_of_requests_and_workers_that_are_gone() -> None:
    rng, core = random.Random(7), make_core("cost_aware", 3)
    for i in range(30):
        worker = place(core, make_request(f"r{i}", blocks(rng, 20)))
        if i % 3 == 0:
            core.handle(make_frame(worker, 0, tokens(f"r{i}", 1)), 1.0)
        assert all(isinstance(a, Send) and isinstance(a.message, Abort) for a in core.cancel(f"r{i}"))
    assert core.watch is not None
    knowledge = core.watch.of_model("m")
    assert len(knowledge.index.predictions) == 0 and all(knowledge.backlog.tokens(f"w{i}") == 0 for i in range(3))
    core.check_integrity()
