"""From a request body to a `Job`: the two generating routes of OpenAI, and `chat_job` for every API that is a chat.

Not responsible for: running a job (answer.py), what a chat asks for (chat_request.py).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenmill.api.answer import AnswerWriter, Job, StreamedAnswer, whole_answer
from tokenmill.api.body import read_body, unless_gone
from tokenmill.api.chat_request import plan_chat
from tokenmill.api.chunks import ChunkWriter
from tokenmill.api.context import ApiContext
from tokenmill.api.generation import EncodedPrompt, Generation, expand
from tokenmill.api.identity import identify
from tokenmill.api.model_service import ModelService
from tokenmill.api.openai_types import ChatRequest, CompletionRequest, GenerationFields
from tokenmill.api.refusals import refuse_unsupported_chat, refuse_unsupported_completion
from tokenmill.api.retell import Paths
from tokenmill.api.sampling import DEFAULT_COMPLETION_TOKENS, chat_sampling, completion_sampling, without_tokens
from tokenmill.api.shapes import ChatShape, CompletionShape, Echo, Shape, ShapeOptions
from tokenmill.api.structured import content_grammar
from tokenmill.core.errors import BadRequestError, ContextLengthError
from tokenmill.core.grammar import Grammar
from tokenmill.core.request import SamplingParams, check_prompt


async def chat_completions(http: HttpRequest, context: ApiContext) -> Response:
    with context.lifecycle.request():
        arrival_s = context.clock.now()
        body = await read_body(http, ChatRequest, context.config.limits)
        job = await chat_job(body, context, http, arrival_s)
        return await respond(job, body, context, http)


MakeWriter = Callable[[Generation], AnswerWriter]


async def chat_job(
    body: ChatRequest,
    context: ApiContext,
    http: HttpRequest,
    arrival_s: float,
    make_writer: MakeWriter | None = None,
    paths: Paths | None = None,
) -> Job:
    """The one way from a chat to its generation, whatever API it came through. Typed errors name fields of `body`.

    make_writer  words the answer in another API; its deltas carry `events`
    paths        what that API calls the fields of `body`
    """
    body = identify(body, http.headers)
    refuse_unsupported_chat(body)
    limits = context.config.limits
    service = await context.models.get(body.model)
    sampling = chat_sampling(body, limits.max_stop_strings)
    _check(body, sampling, service, num_prompts=1, context=context)
    plan = await unless_gone(http.receive, plan_chat(body, service, limits.max_tools))
    sampling = without_tokens(sampling, plan.banned_token_ids)
    asked = _Asked(service, sampling, [plan.prompt], arrival_s, plan.grammar, plan.prediction_token_ids)
    job = _job(body, asked, context, ChatShape)
    return replace(job, reading=plan.reading, writer=make_writer or job.writer, paths=paths or {})


async def completions(http: HttpRequest, context: ApiContext) -> Response:
    with context.lifecycle.request():
        arrival_s = context.clock.now()
        body = identify(await read_body(http, CompletionRequest, context.config.limits), http.headers)
        refuse_unsupported_completion(body)
        service = await context.models.get(body.model)
        sampling = completion_sampling(body, context.config.limits.max_stop_strings)
        _check(body, sampling, service, num_prompts=len(body.prompts()), context=context)
        prompts = await unless_gone(http.receive, _encode_prompts(body, service))
        echoes = [_echo(prompt, service) for prompt in prompts] if body.echo else None
        asked = _Asked(service, sampling, prompts, arrival_s, content_grammar(body))
        job = _job(body, asked, context, lambda options: CompletionShape(options, echoes))
        return await respond(job, body, context, http)


async def _encode_prompts(body: CompletionRequest, service: ModelService) -> list[EncodedPrompt]:
    prompts = body.prompts()
    return [
        await service.encode_prompt(
            prompt,
            add_special_tokens=body.add_special_tokens is not False,
            salt=body.cache_salt,
            param="prompt" if len(prompts) == 1 else f"prompt[{i}]",
        )
        for i, prompt in enumerate(prompts)
    ]


def _echo(prompt: EncodedPrompt, service: ModelService) -> Echo:
    """What the client sent, or the text of the ids it sent; ids without a tokenizer have none."""
    tokenizer = service.tokenizer
    if tokenizer is None:
        return Echo("", f"token_id:{prompt.token_ids[0]}")
    decoded = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    text = tokenizer.decode(prompt.token_ids) if prompt.text is None else prompt.text
    return Echo(text, tokenizer.token_text(prompt.token_ids[0]), len(text) - len(decoded))


def _check(
    body: GenerationFields, sampling: SamplingParams, service: ModelService, *, num_prompts: int, context: ApiContext
) -> None:
    """Everything that can be refused before a prompt is encoded."""
    sampling.check(service.card.vocab_size)
    if body.stream_options is not None and not body.stream:
        raise BadRequestError(
            "stream_options needs stream=true: set it or leave the options out", param="stream_options"
        )
    if sampling.stop:
        service.require_tokenizer("stop")
    num_choices, limit = num_prompts * sampling.n, context.config.limits.max_choices
    if num_choices > limit:
        raise BadRequestError(
            f"{num_prompts} prompts x n={sampling.n} are {num_choices} choices: ask for at most {limit}", param="n"
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, understood."""

    service: ModelService
    sampling: SamplingParams
    prompts: Sequence[EncodedPrompt]
    arrival_s: float
    grammar: Grammar | None = None
    prediction_token_ids: Sequence[int] = ()


def _job(
    body: GenerationFields, asked: _Asked, context: ApiContext, make_shape: Callable[[ShapeOptions], Shape]
) -> Job:
    service, sampling, prompts = asked.service, asked.sampling, asked.prompts
    card = service.card
    shape = make_shape(
        ShapeOptions(
            prompts=prompts,
            n=sampling.n,
            has_prompt_logprobs=body.prompt_logprobs is not None,
            has_token_ids=bool(body.return_token_ids) or service.tokenizer is None,
        )
    )
    answer_id = shape.id_prefix + uuid.uuid4().hex
    requests = expand(
        answer_id,
        card,
        prompts,
        sampling,
        max_tokens=[_room(body, sampling, prompt, service) for prompt in prompts],
        seed=context.draw_seed() if sampling.seed is None else sampling.seed,
        arrival_s=asked.arrival_s,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        tenant=body.user,
        session_id=body.session_id,
        parent_session_id=body.parent_session_id,
        budget_usd=body.budget_usd,
        grammar=asked.grammar,
        prediction_token_ids=asked.prediction_token_ids,
    )
    return Job(
        requests=requests,
        tokenizer=service.tokenizer,
        deadline_s=asyncio.get_running_loop().time() + context.config.limits.request_timeout_s,
        writer=_chunk_writer(
            body, {"id": answer_id, "created": int(time.time()), "model": body.model or card.name}, shape, context
        ),
    )


def _chunk_writer(
    body: GenerationFields, head: dict[str, Any], shape: Shape, context: ApiContext
) -> Callable[[Generation], AnswerWriter]:
    options = body.stream_options
    has_usage = bool(options and options.include_usage)
    return lambda generation: ChunkWriter(
        head,
        shape,
        generation,
        context.dispatcher.ledger,
        interval=context.config.stream_interval,
        has_usage=has_usage,
        has_continuous_usage=has_usage and bool(options and options.continuous_usage_stats),
    )


def _room(body: GenerationFields, sampling: SamplingParams, prompt: EncodedPrompt, service: ModelService) -> int:
    """How many tokens this prompt may get; an error names the field that the client really sent."""
    card = service.card
    try:
        room = check_prompt(len(prompt.token_ids), sampling.max_tokens, card.max_model_len, card.kv_capacity_tokens)
    except ContextLengthError as error:
        if isinstance(body, ChatRequest):
            if error.param == "prompt":
                error.param = "messages"
            elif body.max_completion_tokens is not None:
                error.param = "max_completion_tokens"
        raise
    if isinstance(body, CompletionRequest) and sampling.max_tokens is None:
        room = min(room, DEFAULT_COMPLETION_TOKENS)
    if sampling.min_tokens > room:
        raise BadRequestError(
            f"min_tokens={sampling.min_tokens} is more than the {room} tokens that this request may have: lower it",
            param="min_tokens",
        )
    return room


async def respond(job: Job, body: GenerationFields, context: ApiContext, http: HttpRequest) -> Response:
    if body.stream:
        return StreamedAnswer(job, context, http.state.request_id)
    return await whole_answer(job, context, http)
