"""Grammars, as text, of outputs that make calls: nothing but calls, calls behind text, calls or another answer. Pure.

The worker turns it into the model's own markup (engine/structured/tool_calls.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar, GrammarKind


def calls_grammar(
    tool_parser: str | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    name: str | None = None,
    names: Sequence[str] | None = None,
    is_parallel: bool = True,
    start_after: tuple[int, ...] = (),
    otherwise: Literal["text"] | Grammar | None = None,
) -> Grammar:
    """
    tool_parser   name of the model's format (registry.ParserNames.tools)
    tools         as in the request
    name          the one function to call, once; None: any of them
    names         the only functions that may be called; None: any of them
    is_parallel   several calls in one answer are fine
    start_after   as in Grammar: ids of the end of thinking where the answer begins inside it
    otherwise     None: there must be a call; "text": calls may follow any text; a grammar: calls, or an answer under it
    """
    if tool_parser is None:
        raise CapabilityError(
            "tool_choice asks for a call, and this model writes none: leave tools away, or set a tool parser",
            param="tool_choice",
        )
    functions = [{"index": i, **_function(tool)} for i, tool in enumerate(tools)]
    wanted = names if name is None else (name,)
    chosen = [function for function in functions if wanted is None or function["name"] in wanted]
    if not chosen:
        known = ", ".join(str(function["name"]) for function in functions) or "(none)"
        raise BadRequestError(f"tool_choice names {name!r}: possible are {known}", param="tool_choice")
    max_calls = 1 if name is not None or not is_parallel else None
    source: dict[str, Any] = {
        "format": tool_parser,
        "functions": chosen,
        "max_calls": max_calls,
        "has_text": otherwise == "text",
    }
    if isinstance(otherwise, Grammar):
        source["content"] = {"kind": otherwise.kind, "source": otherwise.source, "param": otherwise.param}
    return Grammar(kind=GrammarKind.TOOL_CALLS, source=json.dumps(source), start_after=start_after, param="tools")


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    return {
        "name": function["name"],
        "parameters": function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False},
        "is_strict": bool(function.get("strict")),
    }
