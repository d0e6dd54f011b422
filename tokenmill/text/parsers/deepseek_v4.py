"""DeepSeek's DSML calls: the tags, and what may end reasoning. Not responsible for writing them (encodings/)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmill.text.parsers.base import marker_at, skip_whitespace
from tokenmill.text.parsers.calls import new_call_id
from tokenmill.text.parsers.tagged import TaggedCallParser, TaggedSyntax
from tokenmill.text.parsers.think import ThinkParser
from tokenmill.text.parsers.typed_values import ToolTypes

_TAG = "｜DSML｜"
_PARAMETER = rf'<{_TAG}parameter\s+name="(?P<name>[^">]+)"(?:\s+string="(?P<string>true|false)")?\s*>'
#: V3.2 called the block function_calls; the rest of its grammar is the same.
_BLOCKS = ("tool_calls", "function_calls")

SYNTAX = TaggedSyntax(
    block_opens=tuple(f"<{_TAG}{name}>" for name in _BLOCKS),
    block_closes=tuple(f"</{_TAG}{name}>" for name in _BLOCKS),
    invoke_prefix=f"<{_TAG}invoke",
    invoke_tag=re.compile(rf'<{_TAG}invoke\s+name="(?P<name>[^">]+)"\s*>'),
    invoke_close=f"</{_TAG}invoke>",
    parameter_prefix=f"<{_TAG}parameter",
    parameter_tag=re.compile(_PARAMETER),
    parameter_close=f"</{_TAG}parameter>",
    max_lead=2,
    stem=f"<{_TAG}",
    strips_newline=False,
)


def is_call_opening(text: str, position: int) -> bool:
    """A block tag stands at `position`: does an invoke tag follow?"""
    block = marker_at(text, position, SYNTAX.block_opens)
    if block is None:
        return False
    return marker_at(text, skip_whitespace(text, position + len(block)), (SYNTAX.invoke_prefix,)) is not None


def tool_parser(
    tools: Sequence[Mapping[str, Any]] | None = None, make_id: Callable[[], str] = new_call_id
) -> TaggedCallParser:
    types = ToolTypes(tools)

    def is_string(function: str, parameter: str, word: str | None) -> bool | None:
        return types.is_string(function, parameter) if word is None else word == "true"

    return TaggedCallParser(SYNTAX, is_string, make_id)


def reasoning_parser(starts_inside: bool, *, has_tools: bool = False) -> ThinkParser:
    if not has_tools:
        return ThinkParser(starts_inside)
    return ThinkParser(starts_inside, call_marker=SYNTAX.block_opens[0], is_call_opening=is_call_opening)
