"""Qwen3-Coder's calls: `<function=f>` with a `<parameter=p>` per argument; types come from the tools' schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmill.text.parsers.calls import new_call_id
from tokenmill.text.parsers.tagged import TaggedCallParser, TaggedSyntax
from tokenmill.text.parsers.typed_values import ToolTypes

SYNTAX = TaggedSyntax(
    block_opens=("<tool_call>",),
    block_closes=("</tool_call>",),
    invoke_prefix="<function=",
    invoke_tag=re.compile(r"<function=(?P<name>[^>\n]+)>"),
    invoke_close="</function>",
    parameter_prefix="<parameter=",
    parameter_tag=re.compile(r"<parameter=(?P<name>[^>\n]+)>"),
    parameter_close="</parameter>",
    max_lead=2,
    stem="<tool_call>",
    strips_newline=True,
)


def tool_parser(
    tools: Sequence[Mapping[str, Any]] | None = None, make_id: Callable[[], str] = new_call_id
) -> TaggedCallParser:
    types = ToolTypes(tools)
    return TaggedCallParser(SYNTAX, lambda function, parameter, _: types.is_string(function, parameter), make_id)
