"""From a Messages body to the body of a chat request: the chat path does the rest. Pure.

Not responsible for: blocks of messages (blocks.py), the answer (events.py).
"""

from __future__ import annotations

from typing import Any

from tokenmill.api.anthropic.blocks import block_text, to_messages
from tokenmill.api.anthropic.types import AnthropicTool, CountTokensRequest, MessagesRequest
from tokenmill.api.openai_types import GenerationFields, TemplateFields
from tokenmill.api.retell import ChatBody, behind_system
from tokenmill.core.errors import CapabilityError

#: Fields of a chat request that Anthropic does not have and that a client may send all the same.
_EXTRA = (GenerationFields.model_fields.keys() | TemplateFields.model_fields.keys()) - {
    *("model", "stream", "stream_options", "max_tokens", "stop", "n", "logprobs", "prompt_logprobs"),
    *("return_token_ids", "user", "continue_final_message", "add_generation_prompt", "tools", "response_format"),
}
_SAME_NAME = ("model", "temperature", "top_p", "top_k", "max_tokens", "stream")
_PATHS = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "tool_choice.function": "tool_choice",
    "continue_final_message": "messages",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_chat(body: CountTokensRequest) -> ChatBody:
    conversation = to_messages([(message.role, message.content) for message in body.messages])
    messages, paths = conversation.messages, _PATHS | conversation.paths
    if body.system:
        messages = [{"role": "system", "content": block_text(body.system, "system")}, *messages]
        paths = behind_system(paths) | {"messages[0]": "system", "messages[0].content": "system"}
    fields: dict[str, Any] = {"messages": messages} | _prompt_fields(body) | _tool_fields(body, paths)
    if conversation.continues:
        fields["continue_final_message"] = True
    if isinstance(body, MessagesRequest):
        fields |= _sampling_fields(body)
    return ChatBody(fields, paths)


def _prompt_fields(body: CountTokensRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {"thinking": body.thinking is not None and body.thinking.type != "disabled"}
    if body.model is not None:
        fields["model"] = body.model
    config = body.output_config
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    text_format = (config and config.format) or body.output_format
    if text_format:
        fields["response_format"] = _response_format(text_format)
    return fields


def _response_format(text_format: dict[str, Any]) -> dict[str, Any]:
    if text_format.get("type") != "json_schema":
        raise CapabilityError(
            f"output_config.format has type {str(text_format.get('type'))[:60]!r}: possible is json_schema",
            param="output_config.format",
        )
    schema = {key: value for key, value in text_format.items() if key != "type"}
    return {"type": "json_schema", "json_schema": {"name": "output", "strict": True} | schema}


def _sampling_fields(body: MessagesRequest) -> dict[str, Any]:
    extra = {key: value for key, value in (body.model_extra or {}).items() if key in _EXTRA}
    fields = extra | {key: value for key in _SAME_NAME if (value := getattr(body, key)) is not None}
    if body.stop_sequences:
        fields["stop"] = body.stop_sequences
    if body.metadata is not None and body.metadata.user_id is not None:
        fields["user"] = body.metadata.user_id
    return fields


def _tool_fields(body: CountTokensRequest, paths: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.tools:
        fields["tools"] = [_tool(tool, i) for i, tool in enumerate(body.tools)]
    for i in range(len(body.tools or ())):
        paths[f"tools[{i}].function"] = f"tools[{i}]"
        paths[f"tools[{i}].function.parameters"] = f"tools[{i}].input_schema"
    choice = body.tool_choice
    if choice is None:
        return fields
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    named = {"type": "function", "function": {"name": choice.name}}
    return fields | {"tool_choice": _CHOICES.get(choice.type, named)}


def _tool(tool: AnthropicTool, index: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise CapabilityError(
            f"tools[{index}] has type {tool.type[:60]!r}: tools are run by the client here, so send only custom ones",
            param=f"tools[{index}].type",
        )
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
