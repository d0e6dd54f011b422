"""Loads over HTTP: sessions with their answers, traces, warm-up, caches that leak, servers that fail, files kept."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.bench.conftest import FakeOpenAI, serve_bench, serving
from tokenmill.bench.aio import run_async
from tokenmill.bench.serve import run_serve_bench
from tokenmill.core.errors import ConfigError
from tokenmill.workloads.lengths import Fixed
from tokenmill.workloads.library import load_workload, parse_workload
from tokenmill.workloads.trace import read_trace

FEW = {"num_prompts": 12, "isl": 40, "osl": 5, "num_unloaded": 1}
TALK = {
    "name": "talk",
    "version": 1,
    "description": "x",
    "prefix_tokens": 16,
    "first_tokens": 8,
    "turns": 3,
    "turn_tokens": 4,
    "output_tokens": 2,
    "gap_s": 0.01,
    "load": {"concurrency": 2},
}
SILENT = {"num_unloaded": 0}


def test_chat_sessions_repeat_what_the_server_answered(fake: FakeOpenAI, run_bench) -> None:
    result = run_bench(workload=parse_workload(TALK), endpoint="chat", concurrency=2, num_requests=12, num_unloaded=0)
    talks = [body["messages"] for body in fake.bodies if len(body["messages"]) == 5]
    assert len(talks) in (3, 4)  # 12 requests, three turns each, the last may be cut by the limit
    for messages in talks:
        assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert messages[1]["content"] == messages[3]["content"] == "xx"
    starts = [messages[0]["content"].split()[:9] for messages in talks]
    assert all(start == starts[0] for start in starts)  # the shared prefix, less what the template adds
    assert result["num_ok"] == 12 and result["is_valid"] and result["settings"]["workload"] == "talk"
    assert result["settings"]["workload_digest"] == parse_workload(TALK).digest


def test_requests_of_a_session_carry_its_name(run_bench, tmp_path) -> None:
    run_bench(workload=parse_workload(TALK), concurrency=2, num_requests=6, folder=tmp_path, **SILENT)
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert sorted({line["turn_index"] for line in lines}) == [0, 1, 2]
    assert len({line["session_id"] for line in lines}) in (2, 3)  # a third starts when the first ends early
    assert all(line["ttft_s"] > 0 and line["isl"] and line["osl"] == 2 for line in lines)


def test_every_run_can_be_replayed(fake: FakeOpenAI, run_bench, tmp_path) -> None:
    first = run_bench(workload=parse_workload(TALK), concurrency=2, num_requests=12, folder=tmp_path, **SILENT)
    trace = tmp_path / "trace.jsonl"
    assert sum(len(session.turns) for session in read_trace(trace)) == 12
    again = run_bench(trace=trace, speed=10.0, **SILENT)
    assert again["num_ok"] == 12 and again["isl_asked_mean"] == first["isl_asked_mean"]
    flat = run_bench(trace=trace, speed=10.0, as_schedule=True, **SILENT)
    assert flat["num_ok"] == 12


def test_two_cells_send_no_common_prompt(fake: FakeOpenAI, run_bench) -> None:
    """A sweep whose cells repeat their prompts measures the prefix cache of the cells before."""
    for concurrency in (1, 2, 4):
        run_bench(concurrency=concurrency, **FEW)
    prompts = [body["prompt"].split() for body in fake.bodies]
    firsts = [tuple(prompt[:8]) for prompt in prompts if len(prompt) > 8]
    assert len(set(firsts)) == len(firsts)
    once = [run_bench(concurrency=2, run_id="same", **FEW) for _ in range(2)]
    assert once[0]["isl_asked_mean"] == once[1]["isl_asked_mean"]
    repeated = [body["prompt"] for body in fake.bodies[-30:]]
    assert len(set(repeated)) < len(repeated)  # the same tokens only where that is asked for


def test_cache_that_knew_the_prompts_is_told(fake: FakeOpenAI, run_bench) -> None:
    clean = run_bench(concurrency=2, **FEW)
    assert clean["problems"] == [] or not any("cache" in problem for problem in clean["problems"])
    assert clean["cached_share"] == 0 and clean["cacheable_share"] == 0
    fake.cached = lambda body: 20
    leaky = run_bench(concurrency=2, **FEW)
    assert any("50% of the prompts came from the server's cache" in problem for problem in leaky["problems"])
    fake.cached = lambda body: 18
    shared = run_bench(concurrency=2, num_shared=20, **FEW)
    assert shared["cacheable_share"] == pytest.approx(20 / 40 * 11 / 12)
    assert not any("cache" in problem for problem in shared["problems"])


def test_warm_up_is_drained_and_measured_by_nobody(fake: FakeOpenAI, run_bench) -> None:
    fake.delay_s = 0.002
    result = run_bench(concurrency=3, num_warmup=6, **FEW)
    assert len(fake.bodies) == 2 + 1 + 6 + 12  # probes, unloaded, warm-up, load
    assert fake.max_in_flight == 3 and result["num_requests"] == 12


def test_server_without_usage_is_counted_by_chunks_and_told(fake: FakeOpenAI, run_bench) -> None:
    fake.has_usage = False
    result = run_bench(concurrency=2, **FEW)
    assert result["num_ok"] == result["num_without_usage"] == 12
    assert result["osl_mean"] == 5 and result["isl_mean"] == 40
    assert any("12 answers had no usage" in problem for problem in result["problems"])


def test_server_that_dies_keeps_what_came_before(fake: FakeOpenAI, run_bench, tmp_path) -> None:
    fake.fails = lambda n: n > 20
    result = run_bench(concurrency=4, num_prompts=500, isl=20, osl=3, num_unloaded=1, folder=tmp_path)
    assert not result["is_complete"] and not result["is_valid"]
    assert 15 < result["num_ok"] < 25 and result["num_failed"] >= 20 and result["num_requests"] < 100
    assert any("stopped early" in problem and "429 overloaded" in problem for problem in result["problems"])
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == result["num_requests"]


def test_nothing_but_failures_is_a_report_that_says_so(fake: FakeOpenAI, run_bench) -> None:
    fake.fails = lambda n: n >= 2  # after the probes
    result = run_bench(concurrency=2, num_prompts=5, isl=20, osl=3, **SILENT)
    assert result["num_ok"] == 0 and result["num_failed"] == 5 and not result["is_valid"]
    assert any("no request succeeded" in problem for problem in result["problems"])
    assert result["usd_per_mtok_output"] is None and result["ttft_s_p50"] is None


def test_interrupt_keeps_and_marks_the_part_that_ran(fake: FakeOpenAI) -> None:
    fake.delay_s = 0.01

    async def main():
        async with serving(fake) as url:
            bench = serve_bench(url, concurrency=2, num_prompts=500, isl=20, osl=5, num_unloaded=1)
            ended = asyncio.Event()
            task = asyncio.ensure_future(run_serve_bench(bench, lambda done, total: ended.set() if done >= 4 else None))
            await ended.wait()
            task.cancel()
            return await task

    result = asyncio.run(main())
    assert result["num_ok"] >= 4 and result["num_cancelled"] >= 1
    assert not result["is_complete"] and "interrupted" in result["problems"][0]


def test_backwards_clock_is_a_failure(fake: FakeOpenAI) -> None:
    ticks = iter(range(10**6, 0, -1))

    async def main():
        async with serving(fake) as url:
            bench = serve_bench(url, concurrency=1, num_prompts=3, isl=20, osl=3, num_unloaded=0)
            return await run_serve_bench(bench, lambda done, total: None, now=lambda: float(next(ticks)))

    result = asyncio.run(main())
    assert result["errors"] == {"the client's clock went backwards": 3} and not result["is_valid"]


def test_open_loop_ramps_and_ends_by_time(fake: FakeOpenAI, run_bench) -> None:
    result = run_bench(rates_per_s=(20.0, 200.0), duration_s=0.3, isl=20, osl=2, num_unloaded=0)
    assert 5 < result["num_ok"] < 60 and result["settings"]["request_rate"] == [20.0, 200.0]


def test_short_answers_are_told(fake: FakeOpenAI, run_bench) -> None:
    """Two tools once differed because one's min_tokens never reached the server."""
    original = fake._usage
    fake._usage = lambda body: original(body) | {"completion_tokens": 2}
    result = run_bench(concurrency=2, **FEW)
    assert any("answers have 2 tokens where 5 were asked for" in problem for problem in result["problems"])


def test_uvloop_runs_the_same(fake: FakeOpenAI) -> None:
    pytest.importorskip("uvloop")

    async def main():
        async with serving(fake) as url:
            return await run_serve_bench(serve_bench(url, concurrency=3, **FEW), lambda done, total: None)

    result = run_async(main())
    assert result["num_ok"] == 12 and result["is_valid"]


def test_swarm_asks_each_role_of_its_own_model(fake: FakeOpenAI, run_bench) -> None:
    """The lead speaks, its agents work on the second model, the lead goes on when all are done."""
    swarm = load_workload("agentic-swarm").scaled(0.01)
    short = {"prefix_tokens": Fixed(8), "first_tokens": Fixed(4), "turn_tokens": Fixed(4), "output_tokens": Fixed(2)}
    swarm = replace(swarm, **short, gap_s=Fixed(0), sub_agents=replace(swarm.sub_agents, gap_s=Fixed(0)))
    result = run_bench(workload=swarm, models=("lead", "worker"), concurrency=1, num_requests=33, num_unloaded=0)
    asked = [body["model"] for body in fake.bodies[2:]]
    assert (asked.count("lead"), asked.count("worker")) == (3, 30)
    inside = asked.index("worker")
    assert asked[inside : inside + 30] == ["worker"] * 30
    assert result["num_ok"] == 33 and result["settings"]["models"] == ["lead", "worker"]


def test_three_models_for_two_roles_are_refused(run_bench) -> None:
    with pytest.raises(ConfigError, match=r"3 models for 2 roles"):
        run_bench(workload=load_workload("agentic-swarm"), models=("a", "b", "c"), concurrency=1, num_requests=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("usd_per_hour", -1.0), ("usd_per_hour", float("nan")), ("watts", -0.5), ("watts", float("inf")),
        ("num_devices", 0), ("num_unloaded", -1), ("num_warmup", -1),
    ],
)  # fmt: skip
def test_impossible_prices_and_counts_are_refused_before_anything_is_sent(name: str, value: float) -> None:
    option = "--price-per-hour" if name == "usd_per_hour" else f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"{option}={value}.*is not possible: give a"):
        serve_bench("http://127.0.0.1:9", **(FEW | {"concurrency": 1, name: value})).check()
