"""Which parsers there are, which of them a model needs, and the one for an output. Not responsible for formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.core.registry import Registry
from tokenmill.text.parsers.base import OutputParser, PlainParser
from tokenmill.text.parsers.calls import new_call_id
from tokenmill.text.parsers.chain import ChainedParser

#: name -> factory (tools, make_id) -> OutputParser
TOOL_PARSERS = Registry(
    "tool parser",
    "tokenmill.tool_parsers",
    {
        "deepseek_v4": "tokenmill.text.parsers.deepseek_v4:tool_parser",
        "hermes": "tokenmill.text.parsers.hermes:tool_parser",
        "llama3_json": "tokenmill.text.parsers.llama3_json:tool_parser",
        "pythonic": "tokenmill.text.parsers.pythonic:tool_parser",
        "qwen": "tokenmill.text.parsers.hermes:tool_parser",
        "qwen3_coder": "tokenmill.text.parsers.qwen3_coder:tool_parser",
    },
)
#: name -> factory (starts_inside, *, has_tools) -> OutputParser
REASONING_PARSERS = Registry(
    "reasoning parser",
    "tokenmill.reasoning_parsers",
    {
        "deepseek_v4": "tokenmill.text.parsers.deepseek_v4:reasoning_parser",
        "think": "tokenmill.text.parsers.registry:think_parser",
    },
)
_OFF = "none"
#: Without this text, which most of its tokenizers have as one token, a format has no calls.
_CALL_MARKS = {
    "deepseek_v4": "｜DSML｜",
    "hermes": "<tool_call>",
    "qwen": "<tool_call>",
    "qwen3_coder": "<tool_call>",
}


@dataclass(frozen=True, slots=True)
class ParserNames:
    """What one model's output is read with; None: no such markup is expected."""

    tools: str | None = None
    reasoning: str | None = None


def choose_parsers(
    *,
    model_name: str = "",
    architecture: str = "",
    chat_template: str | None = None,
    chat_encoding: str = "jinja",
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> ParserNames:
    """The parsers of a model. An explicit name wins ("none" turns one off); ConfigError when it is unknown.

    Then the chat encoding counts, then what the template tells the model to write, then the model's name.
    """
    template = chat_template or ""
    name = f"{model_name} {architecture}".lower()
    tools = _resolve(TOOL_PARSERS, tool_parser, lambda: _tools_of(chat_encoding, template, name))
    reasoning = _resolve(REASONING_PARSERS, reasoning_parser, lambda: _reasoning_of(chat_encoding, template, name))
    return ParserNames(tools, reasoning)


def _resolve(registry: Registry, explicit: str | None, guess: Callable[[], str | None]) -> str | None:
    if explicit is None:
        return guess()
    if explicit == _OFF:
        return None
    registry.load(explicit)
    return explicit


def _tools_of(encoding: str, template: str, name: str) -> str | None:
    if encoding.startswith("deepseek_v4"):
        return "deepseek_v4"
    for markup, parser in (
        ("<function=", "qwen3_coder"),
        ("<tool_call>", "hermes"),
        ("[func_name1(", "pythonic"),
        ("<|python_tag|>", "llama3_json"),
        ('"parameters": dictionary of argument name', "llama3_json"),
    ):
        if markup in template:
            return parser
    for pattern, parser in (
        (r"deepseek.?v4", "deepseek_v4"),
        (r"qwen3.?coder", "qwen3_coder"),
        (r"qwen|hermes", "hermes"),
        (r"llama-?4|toolace", "pythonic"),
        (r"llama-?3", "llama3_json"),
    ):
        if re.search(pattern, name):
            return parser
    return None


def _reasoning_of(encoding: str, template: str, name: str) -> str | None:
    if encoding.startswith("deepseek_v4") or re.search(r"deepseek.?v4", name):
        return "deepseek_v4"
    if "</think>" in template or re.search(r"deepseek.?r1|qwq|qwen3(?!.?coder)", name):
        return "think"
    return None


def think_parser(starts_inside: bool, *, has_tools: bool = False) -> OutputParser:
    from tokenmill.text.parsers.think import ThinkParser

    return ThinkParser(starts_inside)


def build_parser(
    names: ParserNames,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    starts_in_reasoning: bool = False,
    make_id: Callable[[], str] = new_call_id,
) -> OutputParser:
    """The parser of one output. Calls are looked for only when the request offers `tools`."""
    has_tools = bool(tools) and names.tools is not None
    calls = TOOL_PARSERS.load(str(names.tools))(tools, make_id) if has_tools else None
    if names.reasoning is None:
        return calls or PlainParser()
    reasoning = REASONING_PARSERS.load(names.reasoning)(starts_in_reasoning, has_tools=has_tools)
    return reasoning if calls is None else ChainedParser(reasoning, calls)


def call_mark(tool_parser: str | None) -> str | None:
    """Text that every call of a format holds; None: there is none, or it is not known."""
    return _CALL_MARKS.get(tool_parser or "")


def starts_in_reasoning(prompt: str, open_tag: str = "<think>") -> bool:
    """Whether a prompt (its end is enough) leaves the model inside its reasoning."""
    return re.search(re.escape(open_tag) + r"\s*\Z", prompt) is not None
