"""Request bodies of the OpenAI-compatible routes, tolerant of unknown keys and strict about types.

A null is the same as an absent key. Fields that OpenAI does not have follow vLLM's spelling. Not responsible for:
ranges of sampling values (core/request.py), wishes that cannot be served (api/refusals.py), answers (api/shapes.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

_INT64_MAX = 2**63 - 1
MAX_PRIORITY = 2**31 - 1


def _integral(value: Any) -> Any:
    """Languages with one number type send 5 as 5.0; true is not a number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_integral), Strict(), Field(ge=-_INT64_MAX, le=_INT64_MAX)]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Tolerant(BaseModel):
    """Unknown keys are kept: they are looked at by refusals and otherwise ignored."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def _content(value: Any) -> Any:
    if value is None or isinstance(value, str | list):
        return value
    raise PydanticCustomError("content_type", "should be a string or a list of content parts")


class Message(Tolerant):
    """One message. Its other keys (tool_calls, name, reasoning_content …) go to the chat encoding as they are.

    The encoding also checks content parts (text/messages.py).
    """

    role: Role
    content: Annotated[Any, BeforeValidator(_content)] = None


class StreamOptions(Tolerant):
    include_usage: Bool | None = None
    continuous_usage_stats: Bool | None = None


def _stop(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if value is None or (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        return value
    raise PydanticCustomError("stop_type", "should be a string or a list of strings")


class GenerationFields(Tolerant):
    """What chat and text completions have in common."""

    model: str | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    min_p: Float | None = None
    presence_penalty: Float | None = None
    frequency_penalty: Float | None = None
    repetition_penalty: Float | None = None
    logit_bias: dict[int, Float] | None = None
    seed: Int | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_stop)] = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: Bool | None = None
    ignore_eos: Bool | None = None
    n: Int | None = None
    prompt_logprobs: Int | None = None
    stream: Bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    session_id: str | None = None
    parent_session_id: str | None = None
    budget_usd: Float | None = None
    priority: Annotated[Int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    return_token_ids: Bool | None = None
    response_format: Any = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


def _thinking(value: Any) -> Any:
    """A switch, or Anthropic's and DeepSeek's object."""
    if isinstance(value, dict) and value.get("type") in ("enabled", "disabled", "adaptive"):
        return value["type"] != "disabled"
    if value is None or isinstance(value, bool):
        return value
    raise PydanticCustomError("thinking_type", 'should be true, false or {"type": "enabled" or "disabled"}')


class TemplateFields(Tolerant):
    """How messages become a prompt."""

    add_generation_prompt: Bool | None = None
    continue_final_message: Bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Annotated[str, Strict()] | None = None
    thinking: Annotated[bool | None, BeforeValidator(_thinking)] = None
    enable_thinking: Bool | None = None
    tools: list[Any] | None = None


class ChatRequest(GenerationFields, TemplateFields):
    messages: list[Message]
    max_completion_tokens: Int | None = None
    logprobs: Bool | None = None
    top_logprobs: Int | None = None
    tool_choice: Any = None
    parallel_tool_calls: Bool | None = None
    prediction: Any = None


TokenIds = list[int]


def _prompt(value: Any) -> Any:
    """A string, token ids, or a list of either; one look at the types, since id lists may be a million long."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        kinds = set(map(type, value))
        if not kinds or kinds in ({int}, {str}):
            return value
        if kinds == {list} and all(set(map(type, ids)) <= {int} for ids in value):
            return value
    raise PydanticCustomError("prompt_type", "should be a string, a list of token ids, or a list of either")


class CompletionRequest(GenerationFields):
    prompt: Annotated[Any, BeforeValidator(_prompt)]
    logprobs: Int | None = None
    echo: Bool | None = None
    add_special_tokens: Bool | None = None

    def prompts(self) -> list[str | TokenIds]:
        """The prompts one by one; an empty list is one empty prompt."""
        is_one = isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt


class TokenizeRequest(TemplateFields):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: Bool | None = None
    return_token_strs: Bool | None = None


class DetokenizeRequest(Tolerant):
    model: str | None = None
    tokens: list[Int]
