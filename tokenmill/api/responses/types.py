"""The body of `POST /v1/responses`, tolerant of unknown keys. Not responsible for: items of the input (items.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tokenmill.api.openai_types import Bool, Float, Int, Tolerant


def _input(value: Any) -> Any:
    if isinstance(value, str | list):
        return value
    raise PydanticCustomError("input_type", "should be a string or a list of items")


def _tool_choice(value: Any) -> Any:
    if value is None or isinstance(value, str | dict):
        return value
    raise PydanticCustomError("tool_choice_type", "should be 'none', 'auto', 'required' or an object with a type")


class Reasoning(Tolerant):
    effort: str | None = None
    summary: str | None = None


class TextConfig(Tolerant):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(Tolerant):
    """Fields that OpenAI does not have follow vLLM's spelling and are those of a chat request (request.py)."""

    model: str | None = None
    input: Annotated[Any, BeforeValidator(_input)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: Bool | None = None
    stream: Bool | None = None
    max_output_tokens: Int | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_logprobs: Int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[Any, BeforeValidator(_tool_choice)] = None
    parallel_tool_calls: Bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
