"""Reasoning over HTTP: both names of the field, where it begins, the switches, and what holds behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.api.chats import CHAT, FORMATS, ask, dispatcher, message, refusal, says, tool
from tests.api.live import LiveServer, chat_body
from tokenmill.api.config import ApiConfig

MakeServer = Callable[..., LiveServer]
_TEMPLATE = "{{ messages[-1].content }}|{{ enable_thinking }}|{{ thinking }}|{{ reasoning_effort }}|"


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with LiveServer(dispatcher("hermes", "think")) as server:
        yield server


@pytest.fixture
def server(shared: LiveServer) -> LiveServer:
    shared.dispatcher.cut = None
    return shared


def _server(make_server: MakeServer, folder: Path, template: str) -> LiveServer:
    path = folder / "t.jinja"
    path.write_text(template)
    return make_server(ApiConfig(port=0, chat_template=str(path)), dispatcher("hermes", "think"))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_reasoning_has_both_names(server: LiveServer, size: int) -> None:
    server.dispatcher.cut = lambda request: repeat(size)
    server.dispatcher.script = says("<think>why\n\nnot</think>\n\nBecause.")
    made = message(server)
    assert made["reasoning"] == made["reasoning_content"] == "why\n\nnot"
    assert made["content"].strip() == "Because."


def test_reasoning_then_a_call(server: LiveServer) -> None:
    """S46: the last words of the reasoning stay, wherever the pieces are cut."""
    text = "<think>the last words</think>" + FORMATS["hermes"]("1")
    server.dispatcher.script = says(text)
    for size in range(1, 12):
        server.dispatcher.cut = lambda request, size=size: repeat(size)
        made = message(server, tools=[tool()])
        assert made["reasoning"] == "the last words" and made["content"] is None and len(made["tool_calls"]) == 1


def test_reasoning_that_is_cut_off(server: LiveServer) -> None:
    server.dispatcher.script = says("<think>why not")
    (choice,) = ask(server, max_tokens=10)["choices"]
    assert choice["message"] == {"role": "assistant", "content": "", "reasoning": "why", "reasoning_content": "why"}
    assert choice["finish_reason"] == "length"


def test_a_prompt_that_opens_the_reasoning(make_server: MakeServer, tmp_path: Path) -> None:
    server = _server(make_server, tmp_path, "{{ messages[-1].content }}<think>\n")
    server.dispatcher.script = says("inside</think>outside")
    made = message(server)
    assert (made["reasoning"], made["content"]) == ("inside", "outside")


def test_a_grammar_behind_reasoning_needs_its_end_as_a_token(make_server: MakeServer, tmp_path: Path) -> None:
    """Bytes have no token </think>: refused rather than never applied."""
    server = _server(make_server, tmp_path, "{{ messages[-1].content }}<think>\n")
    assert refusal(server, chat_body(guided_regex="a")) == ("unsupported", "response_format")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "|||"),
        ({"reasoning_effort": "low"}, "||low|"),
        ({"reasoning_effort": "none"}, "False|False|none|"),
        ({"thinking": True}, "True|True||"),
        ({"thinking": {"type": "disabled"}}, "False|False||"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "True|True||"),
        ({"enable_thinking": False}, "False|False||"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "False|||"),
        ({"chat_template_kwargs": {"thinking": True}, "enable_thinking": False}, "|True||"),
        ({"chat_template_kwargs": {"reasoning_effort": "x"}, "reasoning_effort": "y"}, "||x|"),
    ],
    ids=str,
)
def test_switches(make_server: MakeServer, tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    """Variables that nobody sets are undefined, as templates expect; the template's own arguments come first."""
    server = _server(make_server, tmp_path, _TEMPLATE)
    server.dispatcher.script = says("ok")
    ask(server, "x", **fields)
    assert bytes(server.dispatcher.seen[-1].prompt_token_ids).decode() == "x|" + told


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": "yes"}, "thinking"),
        ({"thinking": {"type": "some"}}, "thinking"),
        ({"enable_thinking": 1}, "enable_thinking"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"thinking": True, "enable_thinking": False}, "enable_thinking"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"replay": 1}}, "chat_template_kwargs.replay"),
    ],
    ids=str,
)
def test_bad_switches(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    assert refusal(server, chat_body(**fields)) == ("invalid_request", param)
    assert server.post(CHAT, chat_body(max_tokens=1)).status_code == 200
