"""Grammars across processes: a real deployment of two workers with the counting engine, under load."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.chats import tool
from tests.structured.helpers import object_of
from tokenmill.bench.local_server import local_server

pytestmark = [pytest.mark.ci, pytest.mark.requires_llguidance, pytest.mark.xdist_group("processes")]
DATA = Path(__file__).parents[1] / "data"
#: The counting engine has no end token of its own; the byte tokenizer's is 0.
_END: dict[str, Any] = {"max_tokens": 200, "stop_token_ids": [0]}


def _body(i: int) -> dict[str, Any]:
    schema = object_of(id={"const": f"id-{i}"})
    body = {"messages": [{"role": "user", "content": "shared prefix " * 8}], **_END}
    if i % 4 == 0:
        return body | {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    if i % 4 == 1:
        return body | {"tools": [tool("f", schema)], "tool_choice": "required", "parallel_tool_calls": False}
    if i % 4 == 2:
        return body | {"guided_json": {"type": "wrong"}}
    return body | {"guided_regex": f"id-{i}"}


def _check(i: int, response: httpx.Response) -> None:
    if i % 4 == 2:
        assert response.status_code == 400 and response.json()["error"]["param"] == "guided_json.type"
        return
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    if i % 4 == 0:
        assert json.loads(message["content"]) == {"id": f"id-{i}"}
    elif i % 4 == 1:
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"id": f"id-{i}"}
    else:
        assert message["content"] == f"id-{i}"


def test_two_workers_under_load() -> None:
    """S38 across processes: each of 32 concurrent answers has its own id; wrong grammars are refused between them."""
    arguments = [str(DATA / "byte-tokenizer"), "--set", "models.0.worker=simulated", "--workers", "2"]
    with local_server([*arguments, "--tool-call-parser", "hermes"], is_quiet=True) as url:

        def post(i: int) -> httpx.Response:
            return httpx.post(f"{url}/v1/chat/completions", json=_body(i), timeout=50)

        with ThreadPoolExecutor(32) as threads:
            for i, response in enumerate(threads.map(post, range(32))):
                _check(i, response)
        assert httpx.get(f"{url}/health", timeout=10).status_code == 200
