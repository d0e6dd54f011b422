"""`tokenmill run-batch` on a tiny random model: the real engine in a thread, resumed after an interruption."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tiny_llama
from tokenmill.cli.main import main
from tokenmill.core.errors import InternalError
from tokenmill.operations.in_process import InProcessWorker

DATA = Path(__file__).parents[1] / "data"
SMALL = ("--kv-cache-memory-bytes", "8MiB", "--max-num-seqs", "4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", max_model_len=512)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / "byte-tokenizer" / name, path / name)
    return str(path)


@pytest.fixture
def files(tmp_path: Path, model: str) -> tuple[Path, Path]:
    same = {"model": model, "temperature": 0, "stop_token_ids": []}
    bodies = [("completions", {"prompt": f"prompt {i}", "max_tokens": 4}) for i in range(4)]
    bodies += [("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})]
    bodies += [("responses", {"input": "hi", "max_output_tokens": 4})]
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": f"/v1/{url}", "body": same | body}
        for i, (url, body) in enumerate(bodies)
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not json\n")
    return source, tmp_path / "out.jsonl"


def read(path: Path) -> dict[str | None, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines)
    return by_id


def texts(lines: dict[str | None, Any]) -> dict[str, Any]:
    bodies = {key: line["response"]["body"] for key, line in lines.items() if key}
    return {
        key: [part["text"] for item in body["output"] for part in item["content"]]
        if "output" in body
        else body["choices"][0].get("text") or body["choices"][0]["message"]["content"]
        for key, body in bodies.items()
    }


def num_answered(path: Path) -> int:
    return sum((line["response"] or {}).get("status_code") == 200 for line in read(path).values())


def test_a_file_is_answered_and_a_second_run_does_the_rest(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is the one that the file names."""
    source, output = files
    args = ["run-batch", "-i", str(source), "-o", str(output), "--json", *SMALL]
    assert main(args) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert summary["num_answered"] == 6 and summary["errors"] == {"invalid_json_line": 1} and summary["usd"] > 0
    assert "6 answered; 1 failed (1 x invalid_json_line)" in captured.err
    whole = read(output)
    assert whole.keys() == {*(f"r{i}" for i in range(6)), None}
    kept = output.read_text().splitlines(keepends=True)[:3]
    output.write_text("".join(kept) + '{"id": "batch_req_x", "custom')
    assert main(args) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["num_answered"] + again["num_skipped"] == 6 and again["num_skipped"] >= 2
    assert read(output).keys() == whole.keys()
    assert texts(read(output)) == texts(whole)


def test_a_file_that_names_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("nonsense\n")
    assert main(["run-batch", "-i", str(source), "-o", str(tmp_path / "out")]) == 2
    assert "names a model" in capsys.readouterr().err


def test_an_engine_that_fails_ends_the_run(
    files: tuple[Path, Path], model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was answered stays; exit code 1; a later run goes on."""
    from tokenmill.engine.engine import Engine

    source, output = files
    step: Callable[[Engine], Any] = Engine.step
    num_steps = 0

    def breaking(self: Engine) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 6:
            raise RuntimeError("boom")
        return step(self)

    monkeypatch.setattr(Engine, "step", breaking)
    args = ["run-batch", model, "-i", str(source), "-o", str(output), "--concurrency", "1", *SMALL]
    args += ["--served-model-name", model]
    assert main(args) == 1
    assert "boom" in capsys.readouterr().err
    assert 0 < num_answered(output) < 6
    monkeypatch.setattr(Engine, "step", step)
    assert main(args) == 0
    assert num_answered(output) == 6 and len(read(output)) == 7


def test_in_process_worker_tells_of_its_failure(tmp_path: Path) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no card")

    from tokenmill.operations.config import OperationsConfig

    worker = InProcessWorker(Broken(), tmp_path, OperationsConfig(), started_s=0.0)  # type: ignore[arg-type]
    with worker:
        worker._thread.join(10)
    with pytest.raises(InternalError, match="no card"):
        worker.check()
