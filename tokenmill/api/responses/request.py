"""From a Responses body to the body of a chat request: the chat path does the rest. Pure.

Not responsible for: items (items.py), earlier responses (store.py), the answer (events.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.api.openai_types import GenerationFields, TemplateFields
from tokenmill.api.responses.items import Item, to_messages
from tokenmill.api.responses.types import ResponsesRequest
from tokenmill.api.retell import ChatBody, behind_system
from tokenmill.core.errors import BadRequestError, CapabilityError

LOGPROBS = "message.output_text.logprobs"

#: Fields of a chat request that Responses does not have and that a client may send all the same.
_EXTRA = {
    *(GenerationFields.model_fields.keys() | TemplateFields.model_fields.keys()),
    *("prediction", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
} - {
    *("model", "stream", "stream_options", "max_tokens", "n", "prompt_logprobs", "return_token_ids"),
    *("response_format", "tools", "reasoning_effort"),
}
_SAME_NAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "user")
_PATHS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
    "tool_choice.function": "tool_choice",
}


def to_chat(body: ResponsesRequest, history: Sequence[Item], items: Sequence[Item]) -> ChatBody:
    """
    history  items of the responses before, oldest first
    items    of this request's input
    """
    _refuse(body)
    told = [("previous_response_id", item) for item in history]
    told += [(f"input[{i}]", item) for i, item in enumerate(items)]
    conversation = to_messages(told)
    messages, paths = conversation.messages, _PATHS | conversation.paths
    if body.instructions:
        messages = [{"role": "system", "content": body.instructions}, *messages]
        paths = behind_system(paths) | {"messages[0]": "instructions", "messages[0].content": "instructions"}
    extra = {key: value for key, value in (body.model_extra or {}).items() if key in _EXTRA}
    same = {key: value for key in _SAME_NAME if (value := getattr(body, key)) is not None}
    fields = extra | same | {"messages": messages} | _output_fields(body) | _tool_fields(body, paths)
    return ChatBody(fields, paths)


def _output_fields(body: ResponsesRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if LOGPROBS in (body.include or ()) or body.top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    text_format = body.text.format if body.text is not None else None
    if text_format is not None:
        fields["response_format"] = _response_format(text_format)
    return fields


def _response_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """What chat nests one level deeper is flat here."""
    if text_format.get("type") != "json_schema":
        return text_format
    return {"type": "json_schema", "json_schema": {key: v for key, v in text_format.items() if key != "type"}}


def _tool_fields(body: ResponsesRequest, paths: dict[str, str]) -> dict[str, Any]:
    if not body.tools:
        return {} if body.tool_choice in (None, "auto", "none") else {"tool_choice": _tool_choice(body)}
    fields: dict[str, Any] = {"tools": [_tool(tool, i) for i, tool in enumerate(body.tools)]}
    for i in range(len(body.tools)):
        paths[f"tools[{i}].function"] = f"tools[{i}]"
    if body.tool_choice is not None:
        fields["tool_choice"] = _tool_choice(body)
        fields["tools"] = _allowed(fields["tools"], body.tool_choice)
    return fields


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise CapabilityError(
            f"tools[{index}] has type {str(kind)[:60]!r}: tools are run by the client here, so send only functions",
            param=f"tools[{index}].type",
        )
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _tool_choice(body: ResponsesRequest) -> Any:
    choice = body.tool_choice
    if isinstance(choice, str):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools":
        return choice.get("mode", "auto")
    raise CapabilityError(
        f"tool_choice has type {str(choice.get('type'))[:60]!r}: possible are function and allowed_tools",
        param="tool_choice.type",
    )


def _allowed(tools: list[dict[str, Any]], choice: Any) -> list[dict[str, Any]]:
    """Only the tools that `allowed_tools` names."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools
    allowed = choice.get("tools")
    if not isinstance(allowed, list) or not all(isinstance(tool, dict) for tool in allowed):
        raise BadRequestError("tool_choice.tools must be a list of objects with type and name", param="tool_choice")
    names = {tool.get("name") for tool in allowed}
    known = {tool["function"].get("name") for tool in tools}
    for name in sorted(map(str, names - known)):
        raise BadRequestError(f"tool_choice allows {name!r}, which is not in tools: declare it", param="tool_choice")
    return [tool for tool in tools if tool["function"].get("name") in names]


def _refuse(body: ResponsesRequest) -> None:
    """Wishes that cannot be served, by name."""
    extra = body.model_extra or {}
    for name, is_asked, instead in (
        ("background", body.background, "wait for the answer, or stream it"),
        ("truncation", body.truncation == "auto", "shorten the input before sending it"),
        ("conversation", extra.get("conversation"), "use previous_response_id"),
        ("prompt", extra.get("prompt"), "send instructions and input"),
        ("context_management", extra.get("context_management"), "shorten the input before sending it"),
        ("n", extra.get("n") not in (None, 1), "send the request several times"),
    ):
        if is_asked:
            raise CapabilityError(f"{name} cannot be served as asked: {instead}", param=name)
