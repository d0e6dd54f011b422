"""Tools over HTTP: every format, streaming and not, cut anywhere; choices; what is refused, and where the fault is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.api.chats import ALONE, CHAT, FORMATS, ask, calls, dispatcher, message, refusal, says, tool
from tests.api.live import LiveServer, chat_body
from tokenmill.api.config import ApiConfig, LimitsConfig
from tokenmill.core.grammar import GrammarKind

MakeServer = Callable[..., LiveServer]
each_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, LiveServer]]:
    """One per format."""
    running = {name: LiveServer(dispatcher(name)).__enter__() for name in FORMATS}
    yield running
    for server in running.values():
        server.__exit__(None, None, None)


@pytest.fixture
def hermes(servers: dict[str, LiveServer]) -> LiveServer:
    server = servers["hermes"]
    server.dispatcher.seen.clear()
    server.dispatcher.cut = None
    return server


@each_format
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_calls_of_every_format(servers: dict[str, LiveServer], name: str, size: int) -> None:
    """S44, S45: the same calls whatever the size of the pieces, types included."""
    server = servers[name]
    server.dispatcher.cut = lambda request: repeat(size)
    text = FORMATS[name]("5", 'a "b"')
    server.dispatcher.script = says(text if name in ALONE else "Look: " + text)
    answer = ask(server, tools=[tool()])
    made = answer["choices"][0]["message"]
    assert calls(made) == [("put", {"x": "5"}), ("put", {"x": 'a "b"'})]
    assert (made["content"] or "").strip() == ("" if name in ALONE else "Look:")
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert len({call["id"] for call in made["tool_calls"]}) == 2


@each_format
def test_a_call_cut_anywhere(servers: dict[str, LiveServer], name: str) -> None:
    """S48: for every max_tokens the stream shows what the whole answer shows; only whole calls are `tool_calls`.

    S47: markup never comes out as content.
    """
    server = servers[name]
    server.dispatcher.cut = None
    text = FORMATS[name]("value")
    server.dispatcher.script = says(text)
    for length in range(1, len(text.encode()) + 1):
        (choice,) = ask(server, tools=[tool()], max_tokens=length)["choices"]
        assert choice["finish_reason"] == "length"
        is_cut_in_a_character = text.encode()[:length].decode(errors="replace")[-1] == "\ufffd"  # one token in V4
        if not is_cut_in_a_character:
            assert "｜DSML｜" not in (choice["message"]["content"] or "")
    assert ask(server, tools=[tool()])["choices"][0]["finish_reason"] == "tool_calls"


@each_format
def test_without_tools_markup_is_text(servers: dict[str, LiveServer], name: str) -> None:
    server = servers[name]
    text = FORMATS[name]("5")
    server.dispatcher.script = says(text)
    assert message(server)["content"] == text
    assert message(server, tools=[tool()], tool_choice="none")["content"] == text


def test_every_choice_has_its_own_parser(hermes: LiveServer) -> None:
    hermes.dispatcher.script = says(FORMATS["hermes"]("1"), "no call", FORMATS["hermes"]("2", "3"))
    choices = ask(hermes, tools=[tool()], n=3)["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [len(choice["message"].get("tool_calls", ())) for choice in choices] == [1, 0, 2]


def test_log_probabilities_cover_the_tokens_of_calls(hermes: LiveServer) -> None:
    text = "ok " + FORMATS["hermes"]("1")
    hermes.dispatcher.script = says(text)
    answer = ask(hermes, tools=[tool()], logprobs=True)
    rows = answer["choices"][0]["logprobs"]["content"]
    assert len(rows) == answer["usage"]["completion_tokens"] == len(text) + 1
    events = hermes.stream(CHAT, chat_body(tools=[tool()], logprobs=True))
    streamed = [
        row for event in events for choice in event["choices"] for row in (choice["logprobs"] or {}).get("content", ())
    ]
    assert [row["token"] for row in streamed] == [row["token"] for row in rows]


def test_a_whole_round(hermes: LiveServer) -> None:
    """Call, result (as text and as parts), answer: the conversation goes back as clients keep it."""
    hermes.dispatcher.script = says(FORMATS["hermes"]("1", "2"))
    made = message(hermes, "go", tools=[tool()])
    results = [
        {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": "first result"},
        {"role": "tool", "tool_call_id": made["tool_calls"][1]["id"], "content": [{"type": "text", "text": "second"}]},
    ]
    hermes.dispatcher.script = says("done")
    body = {"model": "bytes", "messages": [{"role": "user", "content": "go"}, made, *results], "tools": [tool()]}
    response = hermes.post(CHAT, body)
    assert response.json()["choices"][0]["message"]["content"] == "done"
    prompt = bytes(hermes.dispatcher.seen[-1].prompt_token_ids).decode()
    assert "<tool>first result\n<tool>second\n" in prompt


def test_tools_reach_the_template(make_server: MakeServer, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[-1].content }}")
    server = make_server(ApiConfig(port=0, chat_template=str(template)), dispatcher("hermes"))
    tools = [tool(f"f{i}") for i in range(40)]
    assert server.post(CHAT, chat_body("x", tools=tools, max_tokens=1)).status_code == 200
    prompt = bytes(server.dispatcher.seen[-1].prompt_token_ids).decode()
    assert prompt == "".join(f"[f{i}]" for i in range(40)) + "x"
    tokens = server.post("/tokenize", chat_body("x", tools=tools)).json()["tokens"]
    assert bytes(tokens).decode() == prompt


# -- what may be called --


def _grammar(server: LiveServer, **fields: Any) -> Any:
    server.dispatcher.script = says(FORMATS["hermes"]("1"))
    ask(server, **fields)
    return server.dispatcher.seen[-1].grammar


@pytest.mark.parametrize(
    ("choice", "names", "max_calls"),
    [
        ("required", ["put", "get"], None),
        ({"type": "function", "function": {"name": "get"}}, ["get"], 1),
    ],
)
def test_a_call_that_must_be_made(hermes: LiveServer, choice: Any, names: list[str], max_calls: int | None) -> None:
    grammar = _grammar(hermes, tools=[tool(), tool("get")], tool_choice=choice)
    source = json.loads(grammar.source)
    assert grammar.kind is GrammarKind.TOOL_CALLS and source["format"] == "hermes"
    assert [function["name"] for function in source["functions"]] == names
    assert source["max_calls"] == max_calls and not source["has_text"]


def test_required_calls_that_are_not_parallel(hermes: LiveServer) -> None:
    grammar = _grammar(hermes, tools=[tool()], tool_choice="required", parallel_tool_calls=False)
    assert json.loads(grammar.source)["max_calls"] == 1


def test_free_choice_has_a_grammar_only_where_something_is_promised(hermes: LiveServer) -> None:
    assert _grammar(hermes, tools=[tool()]) is None
    assert _grammar(hermes, tools=[tool()], tool_choice="auto", parallel_tool_calls=True) is None
    assert json.loads(_grammar(hermes, tools=[tool(strict=True)]).source)["has_text"]
    assert json.loads(_grammar(hermes, tools=[tool()], parallel_tool_calls=False).source)["max_calls"] == 1
    assert _grammar(hermes, tools=[tool(strict=True)], tool_choice="none") is None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_some_tools_are_allowed(hermes: LiveServer, mode: str) -> None:
    """The prompt holds all of them, so that a cached prefix stays."""
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    source = json.loads(_grammar(hermes, tools=[tool(), tool("get")], tool_choice=choice).source)
    assert [(function["name"], function["index"]) for function in source["functions"]] == [("get", 1)]
    assert source["has_text"] == (mode == "auto") and source["max_calls"] is None


def test_calls_or_an_answer_in_the_format(hermes: LiveServer) -> None:
    grammar = _grammar(hermes, tools=[tool()], response_format={"type": "json_object"})
    assert json.loads(grammar.source)["content"]["kind"] == "json_object"
    grammar = _grammar(hermes, tools=[tool()], response_format={"type": "json_object"}, tool_choice="none")
    assert grammar.kind is GrammarKind.JSON_OBJECT
    grammar = _grammar(hermes, tools=[tool()], response_format={"type": "json_object"}, tool_choice="required")
    assert "content" not in json.loads(grammar.source)


# -- bad input --

_DEEP: Any = {"type": "object"}
for _ in range(80):
    _DEEP = {"type": "object", "properties": {"a": _DEEP}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": "x"}, "invalid_request", "tools"),
        ({"tools": ["x"]}, "invalid_request", "tools[0].function"),
        ({"tools": [tool(), {"type": "function"}]}, "invalid_request", "tools[1].function"),
        ({"tools": [{"type": "web_search"}]}, "unsupported", "tools[0].type"),
        ({"tools": [tool(name="")]}, "invalid_request", "tools[0].function.name"),
        ({"tools": [tool(name=5)]}, "invalid_request", "tools[0].function.name"),  # type: ignore[arg-type]
        ({"tools": [tool(parameters=["a"])]}, "invalid_request", "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "array"})]}, "invalid_request", "tools[0].function.parameters.type"),
        ({"tools": [tool(parameters=_DEEP)]}, "invalid_request", "tools[0].function.parameters"),
        (
            {"tools": [tool(parameters={"type": "object", "properties": {"a": {"type": "x"}}}, strict=True)]},
            "invalid_request",
            "tools[0].function.parameters.properties.a.type",
        ),
        ({"tools": [tool()] * 600}, "invalid_request", "tools"),
        ({"tools": [tool()], "tool_choice": "maybe"}, "invalid_request", "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "invalid_request", "tool_choice.function.name"),
        ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "unsupported", "tool_choice.type"),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "invalid_request",
            "tool_choice",
        ),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "invalid_request", "tool_choice.allowed_tools"),
        (
            {
                "tools": [tool()],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("x")]}},
            },
            "invalid_request",
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "no"}, "invalid_request", "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "unsupported", "functions"),
        ({"function_call": {"name": "f"}}, "unsupported", "function_call"),
    ],
    ids=str,
)
def test_bad_tools(hermes: LiveServer, fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal(hermes, chat_body(**fields)) == (code, param)
    assert hermes.dispatcher.seen == []


def _assistant(*call_ids: str | None) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "put", "arguments": "{}"}} for one in call_ids]
    return {"role": "assistant", "tool_calls": made}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "tool_call_id": "a", "content": "x"}], "messages[0]"),
        ([{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}], "messages[1]"),
        ([{"role": "assistant", "content": "no call"}, {"role": "tool", "content": "x"}], "messages[1]"),
        ([_assistant("a"), {"role": "tool", "tool_call_id": "b", "content": "x"}], "messages[1].tool_call_id"),
        ([_assistant("a"), {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        ([_assistant("a"), {"role": "tool", "tool_call_id": "a", "content": [5]}], "messages[1].content[0]"),
    ],
    ids=str,
)
def test_bad_conversations(hermes: LiveServer, messages: list[Any], param: str) -> None:
    assert refusal(hermes, {"model": "bytes", "messages": messages})[1] == param


def test_results_of_calls_without_ids_are_taken(hermes: LiveServer) -> None:
    hermes.dispatcher.script = says("ok")
    messages = [{"role": "user", "content": "x"}, _assistant(None), {"role": "tool", "content": "x"}]
    assert hermes.post(CHAT, {"model": "bytes", "messages": messages}).status_code == 200


def test_a_model_without_a_call_format(make_server: MakeServer) -> None:
    server = make_server(None, dispatcher(None))
    assert refusal(server, chat_body(tools=[tool()])) == ("unsupported", "tools")
    assert server.post(CHAT, chat_body(tools=[tool()], tool_choice="none", max_tokens=1)).status_code == 200


def test_the_limit_of_tools_is_a_setting(make_server: MakeServer) -> None:
    server = make_server(ApiConfig(port=0, limits=LimitsConfig(max_tools=2)), dispatcher())
    server.dispatcher.script = says("ok")
    assert server.post(CHAT, chat_body(tools=[tool("a"), tool("b")])).status_code == 200
    assert refusal(server, chat_body(tools=[tool("a"), tool("b"), tool("c")])) == ("invalid_request", "tools")


def test_half_a_surrogate_in_a_tool(hermes: LiveServer) -> None:
    body = json.dumps(chat_body(tools=[tool(description="x")])).replace('"x"}', '"\\ud800"}', 1)
    response = hermes.client.post(CHAT, content=body.encode(), headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("path", ["tools", "response_format", "messages", "unknown"])
def test_json_nested_without_an_end(hermes: LiveServer, path: str) -> None:
    body = json.dumps(chat_body() | {path: "@"}).replace('"@"', "[" * 100_000 + "]" * 100_000)
    response = hermes.client.post(CHAT, content=body.encode(), headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
