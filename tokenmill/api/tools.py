"""Tools and tool choice of a chat request, checked: which are offered, and which call the output must be. Pure.

Not responsible for: how calls look in a model's text (text/parsers), schemas (engine/structured/schema_check).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tokenmill.api.openai_types import ChatRequest
from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar
from tokenmill.core.model_card import ModelCard
from tokenmill.engine.structured.schema_check import check_tool_schemas
from tokenmill.text.parsers.tool_choice import calls_grammar

Tool = Mapping[str, Any]
_MODES = ("none", "auto", "required")
_MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class ToolUse:
    """
    shown        tools that the model is told of
    tools        that it may call: calls are looked for in the output when there are any
    is_required  the output is nothing but calls
    name         of the one function to call
    names        of the only functions that may be called; None: of any
    is_parallel  several calls in one answer are fine
    """

    shown: Sequence[Tool] = ()
    tools: Sequence[Tool] = ()
    is_required: bool = False
    name: str | None = None
    names: tuple[str, ...] | None = None
    is_parallel: bool = True

    def grammar(self, card: ModelCard, content: Grammar | None) -> Grammar | None:
        """What holds the output to whole calls of the tools, or to `content` where none is made; None: nothing to hold.

        Text beside calls is free. A call that must be made counts more than the format of an answer not given.
        """
        is_strict = any(tool["function"].get("strict") for tool in self.tools)
        is_held = is_strict or not self.is_parallel or self.names is not None
        if not self.tools or not (self.is_required or is_held or content is not None):
            return content
        return calls_grammar(
            card.tool_parser,
            self.tools,
            name=self.name,
            names=self.names,
            is_parallel=self.is_parallel,
            otherwise=None if self.is_required else content or "text",
        )


def tool_use(body: ChatRequest, card: ModelCard, max_tools: int, *, can_forbid: bool) -> ToolUse:
    """BadRequestError names the tool, and the field of it, that is wrong.

    can_forbid  the model can be kept from calls while it is told of tools, so that with tool_choice 'none' the prompt,
                and with it the cached prefix, is the same as before
    """
    tools = body.tools or []
    _check_tools(tools, max_tools)
    choice = _choice(body.tool_choice, tools)
    if choice.mode == "none" or not tools:
        return ToolUse(tools if can_forbid else ())
    if card.tool_parser is None:
        raise CapabilityError(
            f"tools cannot be served: how model {card.name!r} writes calls is not known; start it with "
            "--tool-call-parser, or set tool_choice to 'none'",
            param="tools",
        )
    is_parallel = body.parallel_tool_calls is not False
    is_required = choice.mode == "required"
    return ToolUse(tools, tools, is_required, name=choice.name, names=choice.names, is_parallel=is_parallel)


@dataclass(frozen=True, slots=True)
class _Choice:
    """`tool_choice`, whichever way it was written; fields as in ToolUse."""

    mode: str
    name: str | None = None
    names: tuple[str, ...] | None = None


def _check_tools(tools: Sequence[Any], max_tools: int) -> None:
    if len(tools) > max_tools:
        raise BadRequestError(f"tools has {len(tools)} entries: give at most {max_tools}", param="tools")
    for i, tool in enumerate(tools):
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else "function"
        if kind != "function":
            raise CapabilityError(
                f"tools[{i}].type is {str(kind)[:60]!r}: only functions are possible", param=f"tools[{i}].type"
            )
    check_tool_schemas(tools)
    for i, tool in enumerate(tools):
        name = tool["function"].get("name")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARS:
            path = f"tools[{i}].function.name"
            raise BadRequestError(f"{path} must be a text of 1 to {_MAX_NAME_CHARS} characters", param=path)


def _choice(choice: Any, tools: Sequence[Tool]) -> _Choice:
    if choice is None:
        return _Choice("auto")
    if choice in ("none", "auto"):
        return _Choice(choice)
    if choice != "required" and not isinstance(choice, dict):
        raise BadRequestError(
            f"tool_choice must be one of {', '.join(_MODES)}, or an object that names functions", param="tool_choice"
        )
    if not tools:
        raise BadRequestError("tool_choice asks for a call, and there are no tools: give some", param="tool_choice")
    if choice == "required":
        return _Choice("required")
    kind = choice.get("type", "function")
    if kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), {tool["function"]["name"] for tool in tools})
    if kind != "function":
        raise CapabilityError(
            f"tool_choice.type is {str(kind)[:60]!r}: possible are function and allowed_tools", param="tool_choice.type"
        )
    return _Choice("required", name=_name(choice, "tool_choice"))


def _allowed(given: Any, known: Set[str]) -> _Choice:
    """Some of the tools, with a mode of their own: the others stay in the prompt and cannot be called."""
    path = "tool_choice.allowed_tools"
    tools = given.get("tools") if isinstance(given, Mapping) else None
    if not isinstance(tools, list) or not tools or given.get("mode", "auto") not in ("auto", "required"):
        raise BadRequestError(f"{path} must be an object with mode (auto or required) and tools", param=path)
    names = [_name(tool, f"{path}.tools[{i}]") for i, tool in enumerate(tools)]
    for i, name in enumerate(names):
        if name not in known:
            where = f"{path}.tools[{i}].function.name"
            raise BadRequestError(f"{where} names no tool: possible are {', '.join(sorted(known))}", param=where)
    return _Choice(given.get("mode", "auto"), names=tuple(names))


def _name(named: Any, path: str) -> str:
    function = named.get("function") if isinstance(named, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise BadRequestError(
            f'{path} must name a function: {{"type": "function", "function": {{"name": …}}}}',
            param=f"{path}.function.name",
        )
    return name
