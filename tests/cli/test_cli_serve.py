"""`tokenmill serve` as processes, with the counting engine: up, loaded over HTTP, talked to, gone without a trace."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.bench.local_server import local_server
from tokenmill.core.errors import SetupError

COUNTING = ("--set", "models.0.worker=simulated")
DATA = Path(__file__).parents[1] / "data"


def _children() -> set[int]:
    """Processes whose parent is this one."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TMPDIR of the deployment: its run directory is made there, and must be gone at the end."""
    short = Path("/tmp") / f"tm-{os.getpid()}"
    short.mkdir()
    monkeypatch.setenv("TMPDIR", str(short))
    yield short
    left = [path.name for path in short.iterdir()]
    shutil.rmtree(short)
    assert left == []


@pytest.mark.xdist_group("processes")
def test_serve_is_loaded_and_leaves_nothing_behind(run, temporary: Path) -> None:
    before = _children()
    arguments = ["counting", *COUNTING, "--workers", "2", "--price-per-hour", "3.6", "--watts", "10"]
    with local_server(arguments, is_quiet=True) as url:
        load = ("--prompts", "ids", "--vocab-size", "200", "--num-prompts", "8", "--isl", "24", "--osl", "6")
        result = run("bench", "serve", "--url", url, *load, "--concurrency", "4", "--num-unloaded", "2")
    report = result.json
    assert result.code == 0, result.err
    assert (report["num_ok"], report["num_failed"]) == (8, 0)
    assert report["isl_mean"] == 24 and report["osl_mean"] == 6
    assert report["settings"]["model"] == "counting"
    assert report["device_hour_usd"] == pytest.approx(3.6)  # asked of the server: two workers at half the price each
    assert 0 < report["usd_charged"] < report["usd_total"]
    assert "$/M tokens" in result.out and "TTFT" in result.out
    assert _children() == before


@pytest.mark.ci
def test_chat_with_a_server_that_it_starts(run, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counting engine on a byte tokenizer: each byte is the next one up."""
    monkeypatch.setattr("builtins.input", _lines("hello", "/new", "again", ""))
    with local_server([str(DATA / "byte-tokenizer"), *COUNTING], is_quiet=True) as url:
        result = run("chat", "--url", url, "--max-tokens", "3", "--temperature", "0", "--json")
        assert result.code == 0, result.err
        streamed = subprocess.run(
            [sys.executable, "-m", "tokenmill.cli.main", "chat", "--url", url, "--max-tokens", "3"],
            input="hello\n", capture_output=True, text=True, timeout=50, check=True,
        )  # fmt: skip
    assert result.json["content"] == "?@A"  # the prompt ends with ">"
    assert len(result.out.splitlines()) == 2
    assert result.json["usage"]["cost"]["usd"] > 0
    assert streamed.stdout == "?@A\n"
    assert "3 tokens, $" in streamed.stderr


def _lines(*lines: str):
    rest = iter(lines)

    def read(prompt: str = "") -> str:
        return next(rest)

    return read


@pytest.mark.ci
def test_occupied_port_is_one_line_and_code_2(temporary: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "tokenmill.cli.main", "serve", "counting", *COUNTING, "--log-level", "error"]
        command += ["--port", str(taken.getsockname()[1])]
        result = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert result.returncode == 2
    assert "another process does" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.ci
def test_server_that_cannot_start_is_a_setup_error_with_its_reason(temporary: Path) -> None:
    reason = r"did not come up \(exit code 2\): .*there is no model 'nothing'"
    with pytest.raises(SetupError, match=reason), local_server(["nothing"], is_quiet=True):
        pass


@pytest.mark.ci
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_and_exits_0(temporary: Path, signum: int) -> None:
    command = [sys.executable, "-m", "tokenmill.cli.main", "serve", "counting", *COUNTING, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert any(line.startswith("tokenmill ready: http://127.0.0.1:") for line in process.stdout)
        process.send_signal(signum)
        _, log = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 0, log


@pytest.mark.ci
def test_two_models_and_two_names(temporary: Path) -> None:
    import json
    import urllib.request

    arguments = ["one", "two", *COUNTING, "--set", "models.1.worker=simulated"]
    with local_server(arguments, is_quiet=True) as url, urllib.request.urlopen(f"{url}/v1/models") as response:
        models = json.load(response)["data"]
    assert sorted(model["id"] for model in models) == ["one", "two"]
