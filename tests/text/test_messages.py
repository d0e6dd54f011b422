"""Messages as clients send them: brought into one shape, or refused by name."""

from typing import Any

import pytest

from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.text.messages import normalise_messages, normalise_tools


def one(message: dict[str, Any]) -> dict[str, Any]:
    return normalise_messages([message])[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x", "x"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}], "a\nno"),
    ],
)
def test_content_becomes_text(content: Any, expected: str) -> None:
    assert one({"role": "user", "content": content}) == {"role": "user", "content": expected}


def test_none_is_absence_but_for_the_content_of_calls() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert one({"role": "user", "content": "x", "name": None, "tool_calls": None}) == {"role": "user", "content": "x"}
    assert one({"role": "assistant", "content": None, "tool_calls": [call]})["content"] is None
    assert one({"role": "assistant", "tool_calls": []})["content"] == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"a": "cut sho', '{"a": "cut sho'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_calls(arguments: Any, expected: Any) -> None:
    """S56: arguments that were cut short go on as the text they are."""
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert one(message)["tool_calls"][0]["function"] == {"name": "f", "arguments": expected}
    assert message["tool_calls"][0]["function"]["arguments"] is arguments  # type: ignore[index]


def test_reasoning_goes_by_all_its_names() -> None:
    message = one({"role": "assistant", "content": "x", "reasoning": "r"})
    assert message["reasoning_content"] == message["thinking"] == "r"


@pytest.mark.parametrize(
    ("messages", "message", "param"),
    [
        ([], "at least one message", "messages"),
        ("hi", "must be a list", "messages"),
        ({"role": "user"}, "must be a list", "messages"),
        (["hi"], r"messages\[0\] must be an object", "messages[0]"),
        ([{"content": "x"}], r"messages\[0\] has no role", "messages[0].role"),
        ([{"role": 3}], "has no role", "messages[0].role"),
        ([{"role": "user", "content": 3}], "must be a text or a list of parts", "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "must be an object with a type", "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "no 'text' that is a text", "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": "x"}], "must be a list", "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "object with a function", "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "function has no name",
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_wrong_messages_are_named(messages: Any, message: str, param: str) -> None:
    with pytest.raises(BadRequestError, match=message) as error:
        normalise_messages(messages)
    assert error.value.param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:,"}}]
    with pytest.raises(CapabilityError, match=rf"messages\[1\]\.content\[1\] has type '{kind}'") as error:
        normalise_messages([{"role": "system", "content": "x"}, {"role": "user", "content": parts}])
    assert error.value.status == 400
    assert error.value.param == "messages[1].content[1]"


def test_tools() -> None:
    assert normalise_tools(None) is normalise_tools([]) is None
    assert normalise_tools([{"type": "function"}]) == [{"type": "function"}]
    with pytest.raises(BadRequestError, match="tools must be a list of objects"):
        normalise_tools("f")
    with pytest.raises(BadRequestError, match="tools must be a list of objects"):
        normalise_tools(["f"])
