"""Sweeps and comparisons against null servers and misbehaving ones: points, frontiers, gates, ratios, worktrees."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.bench.conftest import FakeOpenAI, serving
from tokenmill.bench import history
from tokenmill.bench.accuracy_gate import sums
from tokenmill.bench.compare import CompareBench, run_compare_bench
from tokenmill.bench.generator import null_server, run_generator_bench
from tokenmill.bench.inferencex import InferenceXBench, run_inferencex_bench
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.pareto import ParetoBench, run_pareto_bench
from tokenmill.bench.pareto_files import write_pareto_files
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.bench.systems import System, forcing_acceptance, parse_system, parse_systems
from tokenmill.core.errors import ConfigError, SetupError
from tokenmill.workloads.curves import read_points
from tokenmill.workloads.lengths import Fixed
from tokenmill.workloads.synthetic import synthetic_workload

SMALL = synthetic_workload(Fixed(20), Fixed(6))
NOBODY = System("nobody", "http://127.0.0.1:9")


def serial(test):
    """Seconds of CPU time or of git: only continuous integration runs it, alone."""
    return pytest.mark.ci(pytest.mark.xdist_group("processes")(test))


def quiet(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    """Two null servers, the second half as quick."""
    with null_server(2.0) as quick, null_server(4.0) as slow:
        yield quick, slow


@contextmanager
def background(fake: FakeOpenAI) -> Iterator[str]:
    """The fake in a loop of its own, since sweeps run loops of their own."""
    ready, stop, told = threading.Event(), asyncio.Event(), {}

    async def main() -> None:
        async with serving(fake) as url:
            told.update(url=url, loop=asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(10)
    try:
        yield told["url"]
    finally:
        told["loop"].call_soon_threadsafe(stop.set)
        thread.join()


def _pareto(systems: list[System], **more) -> ParetoBench:
    cell = partial(ServeBench, usd_per_hour=0.5, watts=40.0)
    settings = {"concurrencies": (1, 4), "num_per_user": 3, "num_warmup_per_user": 1} | more
    return ParetoBench(systems, SMALL, cell=cell, **settings)


def test_sweep_gives_points_files_and_overlays(servers, tmp_path) -> None:
    quick, slow = servers
    cells = []
    result = run_pareto_bench(_pareto([System("quick", quick), System("slow", slow)]), quiet, cells.append)
    assert [(p["curve"], p["concurrency"]) for p in result["points"]] == [
        ("quick", 1), ("quick", 4), ("slow", 1), ("slow", 4),
    ]  # fmt: skip
    for point in result["points"]:
        assert point["usd_per_mtok_total"] == pytest.approx(0.5e6 / 3600 / point["tput_per_gpu"])
        assert point["joules_per_token"] == pytest.approx(40 / point["output_tput_per_gpu"])
        assert point["kind"] == "measured" and point["scenario"] == "fixed"
    assert 4 in result["frontiers"]["quick"]
    assert len(cells) == 4 and [cell["num_requests"] for cell in cells] == [3, 12, 3, 12]
    assert len({cell["run_id"] for cell in result["cells"]}) == 4  # no cell can find another's prompts cached
    files = write_pareto_files(result, tmp_path / "a", published=["V4-Flash"])
    again = write_pareto_files(result, tmp_path / "b", overlays=[tmp_path / "a.json"])
    assert len(read_points(tmp_path / "a.json")) == 4
    table = (tmp_path / "b.csv").read_text().splitlines()
    assert len(table) == 1 + 4 + 4 and sum("quick (a)" in line for line in table) == 2
    text = (tmp_path / "a.html").read_text()
    assert "DeepSeek-V4-Flash" in text and "uPlot" in text
    assert set(files) == set(again) == {"json", "csv", "html"}


def test_system_that_is_gone_leaves_the_others_points(servers) -> None:
    result = run_pareto_bench(_pareto([NOBODY, System("quick", servers[0])], concurrencies=(1,)), quiet)
    assert [point["curve"] for point in result["points"]] == ["quick"]
    assert result["failures"][0]["system"] == "nobody" and not result["is_valid"]
    with pytest.raises(SetupError, match=r"no cell gave a point: .*cannot be reached"):
        run_pareto_bench(_pareto([NOBODY]), quiet)


def test_what_is_not_points_is_refused(tmp_path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"points": [{"curve": 1}]}')
    with pytest.raises(ConfigError, match=r"holds no points"):
        read_points(path)


def test_systems_are_parsed() -> None:
    assert parse_system("a=http://h:1/") == System("a", "http://h:1/")
    assert parse_system("http://h:1/v1").label == "h:1/v1"
    small = parse_system("small=smollm2@engine.max_num_seqs=4@engine.dtype=bfloat16")
    assert small.label == "small"
    assert small.arguments == ("smollm2", "--set", "engine.max_num_seqs=4", "--set", "engine.dtype=bfloat16")
    assert parse_system("smollm2@engine.max_num_seqs=4").arguments == ("smollm2", "--set", "engine.max_num_seqs=4")
    with pytest.raises(ConfigError, match=r"different labels"):
        parse_systems(["smollm2", "smollm2"])
    forced = forcing_acceptance([small], 2.5)[0].arguments
    assert forced[-1].endswith("forced_acceptance_length=2.5")
    with pytest.raises(ConfigError, match=r"server that runs cannot be set"):
        forcing_acceptance([NOBODY], 2.5)


def _inferencex(url: str, **more) -> InferenceXBench:
    settings = {"concurrencies": (2,), "scale": 0.02, "floor": 0.0} | more
    return InferenceXBench("1k1k", [System("s", url)], cell=partial(ServeBench), **settings)


def test_inferencex_follows_the_published_method(fake: FakeOpenAI) -> None:
    with background(fake) as url:
        result = run_inferencex_bench(_inferencex(url), quiet)
    loads = [body for body in fake.bodies if body["max_tokens"] > 1]
    assert len(loads) == 1 + 2 * 2 + 10 * 2  # one alone, warm-ups, measured
    nominal = round(1024 * 0.02)
    assert all(0.79 * nominal <= body["max_tokens"] <= nominal and body["ignore_eos"] for body in loads)
    assert len({body["max_tokens"] for body in loads}) > 2
    assert result["cells"][0]["num_requests"] == 20
    assert result["deviations"] == ["lengths are 0.02 x nominal", "no accuracy gate"] and not result["is_comparable"]


def test_server_that_answers_wrong_fails_its_gate(fake: FakeOpenAI) -> None:
    with background(fake) as url:
        result = run_inferencex_bench(_inferencex(url, floor=0.85), quiet)
    assert result["gates"]["s"]["accuracy"] == 0.0 and not result["is_valid"]
    assert any("fails the accuracy gate" in problem for problem in result["problems"])


def test_server_that_answers_right_passes_its_gate(fake: FakeOpenAI) -> None:
    plain = fake._choice

    def choice(body, text, reason):
        if str(body.get("prompt", "")).endswith("="):
            a, _, b = body["prompt"].splitlines()[-1].removesuffix(" =").split()
            text = f" {int(a) + int(b)}\n"
        return plain(body, text, reason)

    fake._choice = choice
    with background(fake) as url:
        result = run_inferencex_bench(_inferencex(url, floor=0.85), quiet)
    assert result["gates"]["s"]["is_passed"] and result["is_valid"]
    assert result["deviations"] == ["lengths are 0.02 x nominal"]


def test_sums_are_solved_right_and_differ() -> None:
    asked = sums(40)
    assert len({prompt for prompt, _ in asked}) == 40
    for prompt, answer in asked:
        *lines, last = prompt.splitlines()
        assert len(lines) == 6 and eval(last.removesuffix("=")) == answer
        for line in lines:
            left, right = line.split("=")
            assert eval(left) == int(right)


def test_unknown_scenario_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'8k2k' is unknown: possible: 8k1k, 1k1k, agentic"):
        InferenceXBench("8k2k", [], (1,), partial(ServeBench)).workload()


def _compare(systems: list[System], rounds: int = 3) -> CompareBench:
    load = LoadSettings(workload=synthetic_workload(Fixed(20), Fixed(30)), concurrency=2, num_requests=4)
    return CompareBench(systems, load, partial(ServeBench, num_unloaded=1), rounds)


def test_comparison_alternates_and_gives_ratios_with_spread(servers) -> None:
    told = []
    result = run_compare_bench(_compare([System("quick", servers[0]), System("slow", servers[1])]), told.append)
    order = [line.split(",")[1].split(":")[0].strip() for line in told]
    assert order == ["quick", "slow", "slow", "quick", "quick", "slow"]
    tpot = result["metrics"]["tpot_s_p50"]
    assert not tpot["more_is_better"] and list(tpot["ratio"]) == ["slow"]
    ratio = tpot["ratio"]["slow"]
    assert ratio["low"] <= ratio["median"] <= ratio["high"] and ratio["num_rounds"] == 3
    assert 1.1 < ratio["median"] < 4
    assert result["metrics"]["output_tput_per_s"]["ratio"]["slow"]["median"] < 0.95


def test_comparison_keeps_the_rounds_before_a_server_died(fake: FakeOpenAI, servers) -> None:
    fake.fails = lambda n: n > 12
    with background(fake) as url:
        result = run_compare_bench(_compare([System("quick", servers[0]), System("dies", url)]), quiet)
    assert 1 <= len(result["rounds"]) < 3 and not result["is_valid"]
    assert "stopped after" in result["problems"][0]


def test_comparison_needs_two_systems_and_two_rounds(servers) -> None:
    with pytest.raises(ConfigError, match=r"needs two systems"):
        run_compare_bench(_compare([NOBODY]), quiet)
    with pytest.raises(ConfigError, match=r"--rounds 1 has no spread"):
        run_compare_bench(_compare([NOBODY, System("b", servers[0])], rounds=1), quiet)


has_history = subprocess.run(["git", "rev-parse", "--verify", "HEAD~1"], capture_output=True).returncode == 0
needs_history = pytest.mark.skipif(not has_history, reason="needs a git checkout with a past")


@serial
@needs_history
def test_history_serves_each_commit_from_its_own_tree(servers, monkeypatch) -> None:
    served = []

    @contextmanager
    def fake_server(arguments, *, is_quiet, tree):
        assert (tree / "tokenmill" / "cli" / "main.py").is_file()
        served.append((tuple(arguments), tree))
        yield servers[0]

    monkeypatch.setattr(history, "local_server", fake_server)
    result = history.run_history_bench(_compare([], rounds=2), ["HEAD~1", "HEAD"], ["smollm2"], quiet)
    assert [row["ref"] for row in result["releases"]] == ["HEAD~1", "HEAD"] and result["base"] == "HEAD"
    assert all(row["output_tput_per_s"] > 0 and len(row["commit"]) == 40 for row in result["releases"])
    assert len({tree for _, tree in served}) == 2 and not any(tree.exists() for _, tree in served)
    assert "release by release" in history.history_page(result)
    assert json.loads(json.dumps(result)) == result


@needs_history
def test_history_names_a_commit_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"git rev-parse --verify failed .*check --refs"):
        history.run_history_bench(_compare([]), ["no-such-tag", "HEAD"], ["x"], quiet)
    with pytest.raises(ConfigError, match=r"needs two commits"):
        history.run_history_bench(_compare([]), ["HEAD"], ["x"], quiet)


@serial
def test_generator_is_lean() -> None:
    """At least 20,000 streamed tokens per second of its CPU time; every token an event of its own."""
    best = max(
        run_generator_bench(concurrency=16, num_requests=32, osl=96, tick_ms=4.0)["tokens_per_cpu_s"] for _ in "ab"
    )
    assert best > 20_000
