"""Chat messages as clients send them, checked and brought into the shape that chat templates expect. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.core.errors import BadRequestError, CapabilityError

Message = dict[str, Any]

#: Part type -> key of its text. What a client sends back of an earlier answer may be a refusal.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
#: Names of a message's reasoning in use; templates read the first, some the second.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def normalise_messages(messages: Any) -> list[Message]:
    """New messages with `content` as text; BadRequestError names the message, and the part, that is wrong.

    Text parts are joined with newlines. Keys that are None are left out, except that an assistant message with tool
    calls and no content keeps `content: None`, which templates test for. The arguments of a tool call become the
    object that templates expect; text that is no JSON object stays as it is. A tool message answers a call of the last
    assistant message.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadRequestError("messages must be a list with at least one message", param="messages")
    result = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    _check_results(result)
    return result


def _check_results(messages: Sequence[Message]) -> None:
    call_ids: list[Any] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            call_ids = [call.get("id") for call in message.get("tool_calls", ())]
        elif message["role"] == "tool" and not call_ids:
            where = f"messages[{i}]"
            raise BadRequestError(
                f"{where} is a tool result, but no assistant message with tool_calls comes before it", param=where
            )
        elif (
            message["role"] == "tool"
            and None not in call_ids
            and message.get("tool_call_id", call_ids[0]) not in call_ids
        ):
            where = f"messages[{i}].tool_call_id"
            raise BadRequestError(f"{where} names no call of the assistant message before it", param=where)


def normalise_tools(tools: Any) -> list[dict[str, Any]] | None:
    """An empty list is the same as none: templates ask whether there are tools, not how many."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRequestError("tools must be a list of objects with type and function", param="tools")
    return [dict(tool) for tool in tools] or None


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise BadRequestError(f"{where} must be an object with role and content", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequestError(f'{where} has no role: give it one, e.g. "user"', param=f"{where}.role")
    result: Message = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{where}.tool_calls")
    content = message.get("content")
    result["content"] = None if content is None and result.get("tool_calls") else _text(content, f"{where}.content")
    reasoning = next((result[key] for key in _REASONING_KEYS if key in result), None)
    return result if reasoning is None else {"thinking": reasoning, **result, "reasoning_content": reasoning}


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BadRequestError(f"{where} must be a text or a list of parts", param=where)
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise BadRequestError(f"{where} must be an object with a type", param=where)
    if kind not in _TEXT_PARTS:
        raise CapabilityError(
            f"{where} has type {kind!r}: this model reads text; send parts of type 'text'", param=where
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise BadRequestError(f"{where} has type {kind!r} but no {_TEXT_PARTS[kind]!r} that is a text", param=where)
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadRequestError(f"{where} must be a list", param=where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise BadRequestError(f"{where} must be an object with a function", param=where)
    function = dict(call["function"])
    if not isinstance(function.get("name"), str):
        raise BadRequestError(f"{where}.function has no name", param=f"{where}.function.name")
    function["arguments"] = _arguments(function.get("arguments"))
    return {**call, "function": function}


def _arguments(arguments: Any) -> Any:
    """A call cut short leaves arguments that are no JSON; they go to the template as the text they are."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
