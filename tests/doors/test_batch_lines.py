"""Batch files: every line ends up in the output once, and a second run does only what the first did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.api.batch.files import BatchOutput, open_input
from tokenmill.api.batch.lines import BadLine, BatchRequest, answered, first_model, read_requests
from tokenmill.core.errors import BadRequestError

URL = "/v1/completions"


def request(custom_id: str = "a", **changes: Any) -> bytes:
    value = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m"}} | changes
    return json.dumps({key: one for key, one in value.items() if one is not None}).encode() + b"\n"


def test_requests_in_order_with_their_lines() -> None:
    read = list(read_requests([request("a"), b"\n", request("b", method=None), b"  \r\n"], 1000))
    assert read == [BatchRequest(1, "a", URL, {"model": "m"}), BatchRequest(3, "b", URL, {"model": "m"})]


@pytest.mark.parametrize(
    ("line", "code", "custom_id"),
    [
        (b"nonsense\n", "invalid_json_line", None),
        (b'{"custom_id": "a"\n', "invalid_json_line", None),
        (b"\xff\xfe\n", "invalid_json_line", None),
        (b"[" * 100_000 + b"\n", "invalid_json_line", None),
        (b"5\n", "invalid_json_line", None),
        (request(custom_id=""), "invalid_custom_id", None),
        (request(custom_id=5), "invalid_custom_id", None),  # type: ignore[arg-type]
        (request(method="GET"), "invalid_method", "a"),
        (request(url="/v1/embeddings"), "invalid_url", "a"),
        (request(url=None), "invalid_url", "a"),
        (request(url=[]), "invalid_url", "a"),
        (request(body=None), "invalid_body", "a"),
        (request(body="x"), "invalid_body", "a"),
        (request(body={"stream": True}), "invalid_body", "a"),
        (request(body={"prompt": "x" * 200_000}), "line_too_large", None),
    ],
)
def test_bad_lines(line: bytes, code: str, custom_id: str | None) -> None:
    (bad,) = read_requests([line], 150_000)
    assert isinstance(bad, BadLine) and (bad.code, bad.custom_id, bad.number) == (code, custom_id, 1)


def test_a_custom_id_is_used_once() -> None:
    first, second = read_requests([request("a"), request("a")], 1000)
    assert isinstance(first, BatchRequest) and isinstance(second, BadLine)
    assert second.code == "duplicate_custom_id" and second.custom_id == "a"


def test_first_model() -> None:
    assert first_model([b"x\n", request("a", body={}), request("b")], 1000) == "m"
    assert first_model([b"x\n"], 1000) is None


@pytest.mark.parametrize(
    ("status", "is_final"),
    [(200, True), (400, True), (404, True), (429, False), (408, False), (500, False), (503, False)],
)
def test_failures_that_may_pass_are_tried_again(status: int, is_final: bool) -> None:
    line = json.dumps({"custom_id": "a", "response": {"status_code": status}}).encode()
    assert answered(line) == ("a" if is_final else None)


@pytest.mark.parametrize(
    "line", [b"", b"x", b"5", b"{}", b'{"custom_id": "a", "response": null}', b'{"custom_id": "a", "resp']
)
def test_lines_that_answer_nothing(line: bytes) -> None:
    assert answered(line) is None


def answer(custom_id: str, status: int = 200) -> dict[str, Any]:
    return {"custom_id": custom_id, "response": {"status_code": status}, "error": None}


def test_a_second_run_keeps_answers_and_drops_the_rest(tmp_path: Path) -> None:
    """Whatever moment the first run stopped at, in the middle of a line too."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(request("a"))
    path = tmp_path / "out.jsonl"
    first = BatchOutput(path, source)
    for line in (answer("a"), answer("b", 503), {"custom_id": "c", "response": None}, answer("ü\ud800")):
        first.write(line)
    first.close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        second = BatchOutput(path, source)
        second.write(answer("z"))
        second.close()
        kept = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert {line["custom_id"] for line in kept} == second.finished | {"z"}
        assert all(line["response"]["status_code"] == 200 for line in kept)
        assert ("a" in second.finished) is (length >= len(whole.splitlines()[0]))
    assert second.finished == {"a", "ü\ud800"}


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    with pytest.raises(BadRequestError, match="cannot be read"):
        open_input(source)
    source.write_bytes(b"")
    with pytest.raises(BadRequestError, match="is the input file"):
        BatchOutput(source, source)
    with pytest.raises(BadRequestError, match="cannot be written"):
        BatchOutput(tmp_path, source)
