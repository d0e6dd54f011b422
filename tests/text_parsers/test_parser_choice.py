"""Which parsers a model gets, by encoding, template, name and explicit wish."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.text.parsers.base import PlainParser
from tokenmill.text.parsers.registry import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    ParserNames,
    build_parser,
    choose_parsers,
    starts_in_reasoning,
)


@pytest.mark.parametrize(
    ("facts", "tools", "reasoning"),
    [
        ({"chat_encoding": "deepseek_v4_0731"}, "deepseek_v4", "deepseek_v4"),
        ({"model_name": "DeepSeek-V4-Flash"}, "deepseek_v4", "deepseek_v4"),
        ({"chat_template": "… <tool_call>{…}</tool_call> … </think>"}, "hermes", "think"),
        ({"chat_template": "… <tool_call><function=x> …"}, "qwen3_coder", None),
        ({"chat_template": "… <|python_tag|> …", "model_name": "hermes"}, "llama3_json", None),
        ({"chat_template": "… [func_name1(a=1)] …"}, "pythonic", None),
        ({"model_name": "Qwen3-Coder-30B"}, "qwen3_coder", None),
        ({"model_name": "Qwen3-8B"}, "hermes", "think"),
        ({"model_name": "Llama-3.1-8B"}, "llama3_json", None),
        ({"model_name": "x", "architecture": "llama4"}, "pythonic", None),
        ({"model_name": "DeepSeek-R1"}, None, "think"),
        ({"model_name": "smollm2", "chat_template": "plain"}, None, None),
        ({"model_name": "Qwen3", "tool_parser": "none", "reasoning_parser": "none"}, None, None),
        ({"model_name": "Qwen3", "tool_parser": "pythonic"}, "pythonic", "think"),
    ],
)
def test_choice(facts: dict[str, str], tools: str | None, reasoning: str | None) -> None:
    assert choose_parsers(**facts) == ParserNames(tools, reasoning)  # type: ignore[arg-type]


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        choose_parsers(tool_parser="hermez")
    with pytest.raises(ConfigError, match="reasoning parser"):
        choose_parsers(reasoning_parser="reason")


def test_every_registered_parser_can_be_set_up() -> None:
    for tools in [*TOOL_PARSERS.names(), None]:
        for reasoning in [*REASONING_PARSERS.names(), None]:
            target = build_parser(ParserNames(tools, reasoning), tools=[{"name": "f"}])
            assert target.feed("a") + target.finish()
    assert isinstance(build_parser(ParserNames("hermes", None)), PlainParser)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("…<think>", True),
        ("…<think>\n", True),
        ("…<think>\n\n</think>\n\n", False),
        ("<think> is a tag", False),
        ("", False),
    ],
)
def test_where_a_prompt_leaves_the_model(prompt: str, expected: bool) -> None:
    """S55"""
    assert starts_in_reasoning(prompt) is expected
