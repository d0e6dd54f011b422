"""From a chat body to all that its generation needs: prompt, grammar, parsers. Every chat-like route goes through here.

Not responsible for: requests of the core (generation.py), how the answer looks (shapes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tokenmill.api.generation import EncodedPrompt
from tokenmill.api.model_service import ModelService
from tokenmill.api.openai_types import ChatRequest
from tokenmill.api.reading import Reading
from tokenmill.api.reasoning_tokens import ReasoningCounter
from tokenmill.api.structured import content_grammar
from tokenmill.api.tools import ToolUse, tool_use
from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar
from tokenmill.text.parsers.registry import ParserNames, build_parser, call_mark

_THINK, _END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """
    reading               how each choice's output is read
    banned_token_ids      never to be drawn: what would open a call that the client does not want
    prediction_token_ids  what the client expects to get, for proposers of drafts
    """

    prompt: EncodedPrompt
    reading: Reading
    grammar: Grammar | None = None
    banned_token_ids: tuple[int, ...] = ()
    prediction_token_ids: tuple[int, ...] = ()


async def plan_chat(body: ChatRequest, service: ModelService, max_tools: int) -> ChatPlan:
    """Typed errors name the field of `body` that is wrong, before anything runs."""
    mark_id = _call_mark_id(service)
    use = tool_use(body, service.card, max_tools, can_forbid=mark_id is not None)
    grammar = use.grammar(service.card, content_grammar(body))
    prompt = await service.encode_chat(
        body.messages,
        body,
        tools=use.shown or None,
        response_format=body.response_format,
        salt=body.cache_salt,
        scope=_scope(body),
    )
    is_inside = service.opens_reasoning(prompt.token_ids)
    if grammar is not None and is_inside:
        grammar = msgspec.structs.replace(grammar, start_after=_end_of_thinking(service))
    return ChatPlan(
        prompt=prompt,
        reading=_reading(body, service, use, prompt, is_inside),
        grammar=grammar,
        banned_token_ids=(mark_id,) if mark_id is not None and use.shown and not use.tools else (),
        prediction_token_ids=await _prediction(body.prediction, service),
    )


def _scope(body: ChatRequest) -> str:
    """Who may be given the ids of an earlier answer: the same tenant with the same salt."""
    return msgspec.json.encode((body.cache_salt, body.user)).decode()


def _reading(body: ChatRequest, service: ModelService, use: ToolUse, prompt: EncodedPrompt, is_inside: bool) -> Reading:
    names = ParserNames(service.card.tool_parser, service.card.reasoning_parser)
    make_parser = partial(build_parser, names, tools=use.tools, starts_in_reasoning=is_inside)
    make_counter = _counter(service, is_inside)
    if not service.can_replay:
        return Reading(make_parser, make_counter=make_counter)

    async def remember(token_ids: list[int], message: dict[str, Any]) -> None:
        await service.remember(prompt.token_ids, token_ids, message, scope=_scope(body))

    return Reading(make_parser, remember, make_counter)


def _counter(service: ModelService, is_inside: bool) -> Callable[[], ReasoningCounter] | None:
    """None where the model does not think, or its tags are no tokens."""
    tokenizer = service.tokenizer
    if service.card.reasoning_parser is None or tokenizer is None:
        return None
    close_id = tokenizer.token_to_id(_END_THINK)
    if close_id is None:
        return None
    return partial(ReasoningCounter, tokenizer.token_to_id(_THINK), close_id, starts_inside=is_inside)


def _call_mark_id(service: ModelService) -> int | None:
    mark = call_mark(service.card.tool_parser)
    return None if mark is None or service.tokenizer is None else service.tokenizer.token_to_id(mark)


def _end_of_thinking(service: ModelService) -> tuple[int, ...]:
    token_id = service.require_tokenizer("response_format").token_to_id(_END_THINK)
    if token_id is None:
        raise CapabilityError(
            f"structured output begins where thinking ends, and {_END_THINK} is no token of model "
            f"{service.card.name!r}: turn thinking off",
            param="response_format",
        )
    return (token_id,)


async def _prediction(prediction: Any, service: ModelService) -> tuple[int, ...]:
    """OpenAI's predicted output, as ids; at most a context of them."""
    if prediction is None:
        return ()
    content = prediction.get("content") if isinstance(prediction, dict) else None
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise BadRequestError(
            'prediction must be an object: {"type": "content", "content": text or parts}', param="prediction"
        )
    ids = await service.encode_text(content)
    return tuple(ids[: service.card.max_model_len])
