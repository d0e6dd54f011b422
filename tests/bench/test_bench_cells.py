"""A real fleet (counting engine, real scheduler and prefix cache) under the generator: caches, sessions, replay."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import serve_bench
from tokenmill.bench.local_server import local_server
from tokenmill.bench.pareto import ParetoBench, run_pareto_bench
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.bench.systems import System
from tokenmill.workloads.lengths import Fixed
from tokenmill.workloads.library import load_workload
from tokenmill.workloads.synthetic import synthetic_workload

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("processes")]
BYTES = Path(__file__).parents[1] / "data" / "byte-tokenizer"  # a token is a byte, and an answer counts on
#: Of 16 bytes a block would be two long words, which two prompts of some dozen may well have in common by chance.
SETS = ("--set", "models.0.worker=simulated", "--set", "engine.block_size=32")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_server([str(BYTES), *SETS], is_quiet=True) as url:
        yield url


def _run(url: str, **settings: Any) -> dict[str, Any]:
    return asyncio.run(run_serve_bench(serve_bench(url, num_unloaded=1, **settings), lambda done, total: None))


def test_sweep_cells_do_not_leak_cache_into_each_other(url: str) -> None:
    """The same lengths three times over: nothing comes from the cache, though it has room for everything."""
    bench = ParetoBench(
        [System("s", url)], synthetic_workload(Fixed(200), Fixed(8)), (1, 2, 4),
        partial(ServeBench), num_per_user=4,
    )  # fmt: skip
    result = run_pareto_bench(bench, lambda text: None)
    assert [cell["cached_share"] for cell in result["cells"]] == [0.0, 0.0, 0.0]
    assert len(result["points"]) == 3 and result["is_valid"]


def test_leak_would_be_seen(url: str) -> None:
    load = {"isl": 200, "osl": 8, "concurrency": 2, "num_prompts": 8, "run_id": "again"}
    assert _run(url, **load)["cached_share"] == 0.0
    second = _run(url, **load)
    assert second["cached_share"] > 0.9
    assert any("something filled it before" in problem for problem in second["problems"])


def test_agents_get_from_the_cache_what_they_share(url: str, tmp_path) -> None:
    workload = load_workload("agentic").scaled(0.01)
    first = _run(url, workload=workload, concurrency=2, num_prompts=40, folder=tmp_path)
    assert first["num_ok"] == 40 and first["is_valid"], first["problems"]
    assert 0.7 * first["cacheable_share"] < first["cached_share"] <= first["cacheable_share"] + 0.02
    assert _run(url, trace=tmp_path / "trace.jsonl", speed=50.0)["num_ok"] == 40


def test_a_trace_replays_at_the_lengths_of_its_run(url: str, tmp_path) -> None:
    """With ids: text has about the tokens it should have, some per cent more or less by its words."""
    ids = {"prompts": "ids", "vocab_size": 256}
    workload = load_workload("agentic").scaled(0.01)
    first = _run(url, workload=workload, concurrency=2, num_prompts=40, folder=tmp_path, **ids)
    again = _run(url, trace=tmp_path / "trace.jsonl", speed=50.0, **ids)
    assert again["num_ok"] == 40 and again["isl_mean"] == first["isl_mean"]
