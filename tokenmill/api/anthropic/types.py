"""Bodies of `/v1/messages` and `/v1/messages/count_tokens`, tolerant of unknown keys. Blocks: request.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tokenmill.api.openai_types import Bool, Float, Int, Tolerant


def _blocks(value: Any) -> Any:
    if value is None or isinstance(value, str | list):
        return value
    raise PydanticCustomError("blocks_type", "should be a string or a list of blocks")


Blocks = Annotated[Any, BeforeValidator(_blocks)]


class AnthropicMessage(Tolerant):
    role: Literal["user", "assistant", "system"]
    content: Blocks


class AnthropicTool(Tolerant):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Any = None
    strict: Bool | None = None


class ToolChoice(Tolerant):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: Bool | None = None


class Thinking(Tolerant):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Int | None = None


class OutputConfig(Tolerant):
    effort: str | None = None
    format: dict[str, Any] | None = None


class Metadata(Tolerant):
    user_id: str | None = None


class CountTokensRequest(Tolerant):
    """What makes the prompt."""

    model: str | None = None
    messages: list[AnthropicMessage]
    system: Blocks = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: Annotated[Int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    stream: Bool | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    metadata: Metadata | None = None
