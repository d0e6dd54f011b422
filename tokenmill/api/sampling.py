"""From the fields of a request body to `core.SamplingParams`. Not responsible for: ranges (core checks them)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.api.openai_types import ChatRequest, CompletionRequest, GenerationFields
from tokenmill.core.errors import BadRequestError
from tokenmill.core.request import MAX_LOGPROBS, SamplingParams

#: What OpenAI and vLLM do for text completions without max_tokens.
DEFAULT_COMPLETION_TOKENS = 16

_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "include_stop_str_in_output",
    "ignore_eos",
    "n",
    "prompt_logprobs",
)


def chat_sampling(body: ChatRequest, max_stop_strings: int) -> SamplingParams:
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _sampling(body, max_stop_strings, max_tokens=max_tokens, logprobs=_chat_logprobs(body))


def completion_sampling(body: CompletionRequest, max_stop_strings: int) -> SamplingParams:
    """`echo` with `logprobs` shows those of the prompt too."""
    sampling = _sampling(body, max_stop_strings, max_tokens=body.max_tokens, logprobs=body.logprobs)
    if body.echo and sampling.prompt_logprobs is None:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=body.logprobs)
    return sampling


def _sampling(
    body: GenerationFields, max_stop_strings: int, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    given = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    stop = tuple(body.stop or ())
    if len(stop) > max_stop_strings:
        raise BadRequestError(f"stop has {len(stop)} strings: give at most {max_stop_strings}", param="stop")
    return SamplingParams(
        **given,
        max_tokens=max_tokens,
        logprobs=logprobs,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        top_k=0 if body.top_k in (None, -1) else body.top_k,  # vLLM's "all" is -1, also 0
    )


def without_tokens(sampling: SamplingParams, token_ids: Sequence[int]) -> SamplingParams:
    """These are as unlikely as a bias can make them."""
    if not token_ids:
        return sampling
    return msgspec.structs.replace(sampling, logit_bias=sampling.logit_bias | dict.fromkeys(token_ids, -100.0))


def _chat_logprobs(body: ChatRequest) -> int | None:
    """OpenAI's two fields in one number: None is off, 0 the chosen tokens alone."""
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise BadRequestError(
            f"top_logprobs={top} is not possible: give a number from 0 to {MAX_LOGPROBS}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise BadRequestError(f"top_logprobs={top} needs logprobs=true: set it", param="top_logprobs")
    return (top or 0) if body.logprobs else None
