"""Commands that compute, on a tiny random Llama with a byte tokenizer: generate, bench throughput."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import write_tiny_llama

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", max_model_len=512)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / "byte-tokenizer" / name, path / name)
    return str(path)


def test_generate_prints_text_and_cost(run, model: str) -> None:
    result = run("generate", model, "-p", "hello", "--max-tokens", "8", "--price-per-hour", "3.6", "--deterministic")
    assert result.code == 0
    assert "tok/s" in result.err and "per million output tokens" in result.err


def test_generate_json_for_several_prompts_and_choices(run, model: str) -> None:
    args = ("-p", "hello", "-p", "you", "-n", "2", "--max-tokens", "6", "--temperature", "1", "--seed", "3")
    result = run("generate", model, *args, "--json").json
    assert [answer["prompt"] for answer in result["results"]] == ["hello", "you"]
    assert [len(answer["choices"]) for answer in result["results"]] == [2, 2]
    assert result["results"][0]["num_prompt_tokens"] == 5
    assert all(len(choice["token_ids"]) <= 6 for answer in result["results"] for choice in answer["choices"])
    assert result["usd"] > 0


def test_generate_reads_stdin_and_renders_chat(run, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", iter(["hi\n", "\n", "there\n"]))
    result = run("generate", model, "--chat", "--max-tokens", "2", "--json").json
    assert [answer["prompt"] for answer in result["results"]] == ["hi", "there"]
    assert result["results"][0]["num_prompt_tokens"] == len("<user>hi\n<assistant>")


def test_generate_refuses_what_cannot_be_sampled(run, model: str) -> None:
    result = run("generate", model, "-p", "x", "--temperature", "-1")
    assert result.code == 2 and "temperature=-1" in result.err
    result = run("generate", model, "-p", "x" * 600)
    assert result.code == 2 and "512" in result.err


def test_bench_throughput_alone(run, model: str, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    args = (
        "--num-prompts",
        "6",
        "--isl",
        "20",
        "--osl",
        "5",
        "--repeats",
        "1",
        "--price-per-hour",
        "3.6",
        "--watts",
        "10",
    )
    result = run("bench", "throughput", "--model", model, *args, "--set", "dtype=float32", "-o", str(output))
    report = result.json
    assert result.code == 0 and output.is_file() and "output tok/s" in result.out
    ours = report["tokenmill"]
    assert ours["output_tput_per_s"] == pytest.approx(30 / ours["seconds_p50"])
    assert ours["usd_per_mtok_output"] == pytest.approx(ours["seconds_p50"] * 0.001 / 30 * 1e6)
    assert report["engine"]["dtype"] == "float32" and report["engine"]["max_num_seqs"] == 6
    assert report["environment"]["packages"]["torch"]


@pytest.mark.ci
@pytest.mark.timeout(180)
@pytest.mark.requires_transformers
def test_bench_throughput_against_transformers(run, model: str) -> None:
    """Both run the same checkpoint: greedy float32 answers must be the same token for token."""
    args = ("--num-prompts", "5", "--isl", "12", "--osl", "10", "--repeats", "1", "--set", "dtype=float32")
    result = run("bench", "throughput", "--model", model, *args, "--against", "transformers")
    report, peer = result.json, result.json["transformers"]
    assert peer["common_prefix_share"] == 1.0
    assert report["ratio"] == pytest.approx(peer["seconds_p50"] / report["tokenmill"]["seconds_p50"])
    assert {probe["attention"] for probe in peer["probes"]} == {"sdpa", "eager"}
    assert peer["batch_size"] in (1, 4, 5)
    assert f"batch {peer['batch_size']}, {peer['attention']} attention" in result.out
    assert "ratio tokenmill / transformers" in result.out


@pytest.mark.ci
def test_chat_starts_a_server_of_its_own_and_stops_it(run, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["hello", "", "never read"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    result = run("chat", model, "--max-tokens", "4", "--temperature", "0", "--json")
    assert result.code == 0, result.err
    assert result.json["usage"]["completion_tokens"] <= 4 and result.json["usage"]["cost"]["usd"] > 0
    assert next(lines) == "never read"


@pytest.mark.ci
def test_the_demo_runs(model: str) -> None:
    """examples/demo.py, as `make demo` runs it, on the tiny model."""
    demo = Path(__file__).parents[2] / "examples" / "demo.py"
    result = subprocess.run([sys.executable, str(demo), model], capture_output=True, text=True, timeout=55)
    assert result.returncode == 0, result.stderr
    for part in ("output tokens/s", "TTFT median", "$ per million output tokens", "server stopped"):
        assert part in result.stdout
    assert result.stdout.count("\n> ") == 6
