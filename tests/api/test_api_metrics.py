"""/metrics and the log line: every figure moves under load, and they agree with each other and with the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from tests.api.fakes import RATE, FakeDispatcher, card, ids
from tests.api.live import LiveServer
from tokenmill.api.metrics import FleetSums
from tokenmill.api.request_metrics import RequestMetrics
from tokenmill.api.stats_log import StatsLog
from tokenmill.core import metric_names as names
from tokenmill.core.clock import ManualClock, SystemClock
from tokenmill.core.errors import OverloadedError, WorkerLostError
from tokenmill.core.request import FinishReason, Request, SamplingParams
from tokenmill.core.slo import SLO
from tokenmill.core.wire import StepFrame, WorkerStats
from tokenmill.cost.ledger import Ledger
from tokenmill.operations.members import MemberState, MemberView

#: Constant while nothing drafts; test_draft_counts_add_up_over_lives moves them.
OF_DRAFTS = {
    names.SPEC_DECODE_NUM_DRAFTS,
    names.SPEC_DECODE_NUM_DRAFT_TOKENS,
    names.SPEC_DECODE_NUM_ACCEPTED_TOKENS,
    names.SPEC_DECODE_NUM_ACCEPTED_TOKENS_PER_POS,
    names.SPEC_DECODE_ACCEPTANCE_LENGTH,
}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(server: LiveServer) -> Samples:
    response = server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(
        value
        for (found, its), value in samples.items()
        if found == name and all(dict(its).get(key) == wanted for key, wanted in labels.items())
    )


@pytest.fixture
def busy(make_server: Callable[..., LiveServer]) -> LiveServer:
    """A server whose dispatcher has preempted, restarted, failed, overrun and lost."""
    dispatcher = FakeDispatcher()
    dispatcher.script = lambda request: ids("abc!defghijklmnop" * 20)
    return make_server(None, dispatcher)


def put_under_load(server: LiveServer) -> Samples:
    """Everything that a metric can tell of happens; the scrape in the middle of it."""
    dispatcher = server.dispatcher
    prompt = "a prompt of several blocks, the same each time"
    for fields in ({}, {"n": 2}, {"stop": "!"}, {"max_tokens": 1}, {"stream": True}):
        assert server.complete(prompt, **fields).status_code == 200
    server.complete(prompt, temperature=-1)
    dispatcher.cut = lambda request: repeat(9)
    assert server.complete(prompt, stop="!").json()["usage"]["completion_tokens"] == 4
    dispatcher.cut = None
    dispatcher.error, dispatcher.fail_at = WorkerLostError("died: again"), 2
    assert server.complete(prompt).status_code == 503
    dispatcher.error, dispatcher.fail_at = None, None
    dispatcher.pause_s = 0.002
    dispatcher._stats["bytes"] = msgspec.structs.replace(dispatcher._stats["bytes"], num_preemptions_total=2)
    with ThreadPoolExecutor(10) as pool:
        running = [pool.submit(server.complete, prompt, max_tokens=60, stop="never") for _ in range(10)]
        while len(dispatcher.running) < 10:
            pass
        during = scrape(server)
        for one in running:
            assert one.result().status_code == 200
    return during


def test_every_metric_moves(busy: LiveServer) -> None:
    """S76: a registered metric that never changes fails here; gauges stay within their bounds."""
    dispatcher = busy.dispatcher
    before = scrape(busy)
    during = put_under_load(busy)
    ledger = dispatcher.ledger
    ledger.step(StepFrame(worker_id="w0", incarnation=0, until_s=dispatcher._until_s + 0.5, idle_s=0.1))
    ledger.exited("w0", 0, dispatcher._until_s + 5)
    restarted = replace(dispatcher.snapshot()[0], incarnation=1, state=MemberState.STARTING)
    dispatcher.snapshot = lambda: (restarted,)  # type: ignore[method-assign]
    after = scrape(busy)
    for metric in set(names.ALL.values()) - OF_DRAFTS:
        stem = metric.name
        moved = [
            key
            for key in {*before, *during, *after}
            if key[0] in (stem, f"{stem}_count", f"{stem}_bucket")
            and not (before.get(key) == during.get(key) == after.get(key))
        ]
        is_constant = metric is names.DEVICE_USD_PER_HOUR
        assert moved or (is_constant and during[stem, (("worker_id", "w0"),)] == 3.6), f"{stem} never changes"
    assert 0 < total(during, names.KV_CACHE_USAGE_PERC.name) <= 1
    assert total(during, names.NUM_REQUESTS_RUNNING.name) == 10
    assert total(during, names.NUM_REQUESTS_WAITING.name) == 2


def test_counters_reconcile(busy: LiveServer) -> None:
    """S77: hits = cached tokens of the answers, queries = their prompt tokens, outputs = their completion tokens."""
    usages = [
        busy.complete("the same prompt over and over, again and again", n=1, max_tokens=9).json()["usage"]
        for _ in range(6)
    ]
    samples = scrape(busy)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached > 0
    assert total(samples, names.PREFIX_CACHE_HITS.name) == cached
    assert total(samples, names.PREFIX_CACHE_QUERIES.name) == sum(usage["prompt_tokens"] for usage in usages)
    assert total(samples, names.PROMPT_TOKENS.name) == sum(usage["prompt_tokens"] for usage in usages)
    assert total(samples, names.GENERATION_TOKENS.name) == sum(usage["completion_tokens"] for usage in usages)
    assert total(samples, names.REQUEST_SUCCESS.name, finished_reason="length") == 6
    assert total(samples, names.GOOD_TOKENS.name) == 54
    for stem in (names.REQUEST_PROMPT_TOKENS.name, names.E2E_REQUEST_LATENCY.name, names.TIME_TO_FIRST_TOKEN.name):
        assert total(samples, f"{stem}_count") == 6
    assert total(samples, f"{names.INTER_TOKEN_LATENCY.name}_count") == 6 * 8
    assert total(samples, f"{names.REQUEST_GENERATION_TOKENS.name}_sum") == 54
    usd = sum(usage["cost"]["usd"] for usage in usages)
    charged_s = total(samples, names.DEVICE_SECONDS.name, kind="decode")
    assert charged_s == pytest.approx(usd * 3600 / RATE.usd_per_hour) == pytest.approx(0.054)
    kinds_s = total(samples, names.DEVICE_SECONDS.name)
    assert total(samples, names.COST_USD.name) == pytest.approx(kinds_s * RATE.usd_per_hour / 3600)
    assert total(samples, names.ENERGY_JOULES.name, source="modelled") == pytest.approx(kinds_s * RATE.watts)
    per_mtok = total(samples, names.USD_PER_MTOK.name, kind="output")
    assert per_mtok == pytest.approx(total(samples, names.COST_USD.name) / 54 * 1e6)
    assert busy.dispatcher.ledger.check_balance(0.0).is_balanced


def test_errors_are_counted(busy: LiveServer) -> None:
    busy.complete(temperature=-1)
    busy.client.get("/nope")
    busy.client.get("/v1/completions")
    busy.dispatcher.error, busy.dispatcher.fail_at = RuntimeError("x"), 1
    busy.complete(stream=True)
    samples = scrape(busy)
    assert total(samples, names.REQUEST_SUCCESS.name, finished_reason="error") == 1
    before = total(samples, names.PROMPT_TOKENS.name)
    busy.dispatcher.error, busy.dispatcher.fail_at = OverloadedError("full: wait"), None
    busy.complete()
    assert total(scrape(busy), names.PROMPT_TOKENS.name) == before, "what was refused has no tokens"
    for code, count in (("invalid_request", 1), ("not_found", 1), ("method_not_allowed", 1), ("internal_error", 1)):
        assert total(samples, names.REQUEST_ERRORS.name, code=code) == count


def test_good_tokens_need_the_objective() -> None:
    """Latencies of the door decide: within the objective good, beyond it not."""
    ledger, metrics = Ledger(SLO.parse("ttft=100ms,tpot=20ms")), RequestMetrics()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for request_id, ttft_s, gap_s in (("a", 0.05, 0.01), ("b", 0.2, 0.01), ("c", 0.05, 0.03)):
        track = metrics.track("m", 3, 10.0)
        track.output(1, 10 + ttft_s)
        track.output(3, 10 + ttft_s + 2 * gap_s)
        track.reason = FinishReason.LENGTH
        ledger.begin(request_id, "m", num_prompt_tokens=3)
        ledger.observe(request_id, track.outcome())
        assert track.ttft_s == pytest.approx(ttft_s) and track.tpot_s == pytest.approx(gap_s)
        assert track.e2e_s == pytest.approx(ttft_s + 2 * gap_s)
    assert ledger.totals().counts.num_good_requests == 1


def test_tracks_without_output() -> None:
    track = RequestMetrics().track("m", 3, 10.0)
    assert track.ttft_s is track.tpot_s is track.e2e_s is None
    assert not track.outcome().is_complete


def view(
    incarnation: int, *, state: MemberState = MemberState.READY, worker_id: str = "w0", **stats: Any
) -> MemberView:
    return MemberView(worker_id, "m", incarnation, state, 0.0, 0.0, 0.0, stats=WorkerStats(**stats))


def test_restarts_do_not_take_counters_back() -> None:
    sums = FleetSums()
    assert sums.look([view(0, generation_tokens_total=10)])["m"].generation_tokens_total == 10
    assert sums.look([view(1, generation_tokens_total=3)])["m"].generation_tokens_total == 13
    assert sums.look([view(1, generation_tokens_total=5)])["m"].generation_tokens_total == 15
    lost = sums.look([view(1, state=MemberState.LOST, generation_tokens_total=5, num_running=4)])["m"]
    assert (lost.generation_tokens_total, lost.num_running, lost.kv_usage) == (15, 0, 0.0)


def test_gauges_over_workers() -> None:
    both = FleetSums().look(
        [view(0, num_running=2, num_waiting=1, kv_usage=0.2), view(0, worker_id="w1", num_running=3, kv_usage=0.6)]
    )["m"]
    assert (both.num_running, both.num_waiting) == (5, 1) and both.kv_usage == pytest.approx(0.4)


# -- the log line --


def test_log_line() -> None:
    dispatcher, clock = FakeDispatcher(), ManualClock(100.0)
    log = StatsLog(dispatcher, clock)
    clock.advance(10)
    assert log.line() is None, "quiet when idle"

    async def run() -> None:
        request = Request(
            request_id="r", model="bytes", prompt_token_ids=list(range(20)), sampling=SamplingParams(max_tokens=40)
        )
        async for _ in dispatcher.generate(request):
            pass

    asyncio.run(run())
    clock.advance(10)
    line = log.line()
    # 40 steps of 1 ms and as much idle at $3.6/h over 20 + 40 tokens
    assert line == (
        "prompt 2.0 tok/s, generation 4.0 tok/s, running 0, waiting 0, KV 0.0 %, prefix hits 0.0 %, $1.333/M tokens"
    )
    clock.advance(10)
    assert log.line() is None
    assert log.line() is None, "no time, no rates"


def test_log_line_while_work_waits() -> None:
    """S62: running or waiting work without a token is not silence."""
    dispatcher, clock = FakeDispatcher(), ManualClock()
    log = StatsLog(dispatcher, clock)
    dispatcher._stats["bytes"] = WorkerStats(num_running=1, num_waiting=3, kv_usage=1.0)
    clock.advance(10)
    line = log.line()
    assert line is not None and "running 1, waiting 3, KV 100.0 %" in line and "no price yet" in line


def test_log_loop(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = FakeDispatcher(card("a"), card("b"))
    dispatcher._stats["a"] = WorkerStats(num_running=1)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await StatsLog(dispatcher, SystemClock()).run(0.02)
        await StatsLog(dispatcher, SystemClock()).run(0)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert any("running 1" in record.getMessage() for record in caplog.records)


def test_draft_counts_add_up_over_lives(busy: LiveServer) -> None:
    """Verified, accepted, by position and the mean length; a restart takes nothing back."""
    dispatcher = busy.dispatcher
    view = dispatcher.snapshot()[0]

    def show(incarnation: int, *at: int) -> Samples:
        stats = WorkerStats(
            drafts_total=10, draft_tokens_total=30, accepted_tokens_total=sum(at), accepted_at_total=tuple(at)
        )
        member = replace(view, incarnation=incarnation, stats=stats)
        dispatcher.snapshot = lambda: (member,)  # type: ignore[method-assign]
        return scrape(busy)

    first, second = show(7, 6, 3), show(8, 5, 2, 1)
    assert total(first, names.SPEC_DECODE_NUM_DRAFT_TOKENS.name) == 30
    assert total(second, names.SPEC_DECODE_NUM_DRAFTS.name) - total(first, names.SPEC_DECODE_NUM_DRAFTS.name) == 10
    assert total(second, names.SPEC_DECODE_NUM_ACCEPTED_TOKENS.name) == 17
    per_position = [
        total(second, names.SPEC_DECODE_NUM_ACCEPTED_TOKENS_PER_POS.name, position=str(p)) for p in range(3)
    ]
    assert per_position == [11, 5, 1]
    assert total(second, names.SPEC_DECODE_ACCEPTANCE_LENGTH.name) == 1 + 17 / 20


def test_the_documentation_lists_every_metric() -> None:
    """docs/api.md has one row per exported metric, with vLLM's name."""
    rows = [
        f"| `{metric.name}` | {metric.type} | {', '.join(metric.labels) or '–'} | "
        f"{f'`{metric.vllm_name}`' if metric.vllm_name else '–'} | {metric.help} |"
        for metric in names.ALL.values()
    ]
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in text] == []
    assert text.count("| `tokenmill_") == len(rows)
