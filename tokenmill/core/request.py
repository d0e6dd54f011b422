"""What the user asked (immutable): request, sampling parameters, and the tokens that come back.

These types cross process boundaries as msgpack, hence msgspec structs. Not responsible for: text.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tokenmill.core.errors import BadRequestError, ContextLengthError
from tokenmill.core.grammar import Grammar

MAX_LOGPROBS = 20
MAX_N = 128
_MAX_SEED = 2**63 - 1


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens or the context is full
    ABORT = "abort"  # the client left
    ERROR = "error"  # see the error beside it


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How to choose tokens. `None` for max_tokens means: until the context is full.

    temperature 0 is greedy. top_k 0 means all. `logprobs` / `prompt_logprobs`: number of alternatives beside the
    chosen token, None = off. `seed` None: the frontend draws one, so that a retry gives the same text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def check(self, vocab_size: int | None = None) -> None:
        """Raise BadRequestError naming the first field that is out of range."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN compares false
                hint = _HINTS.get(name, f"from {low} to {high}")
                raise BadRequestError(f"{name}={value} is not possible: give a number {hint}", param=name)
        for name in ("top_p", "repetition_penalty"):  # 0 is the open end of their range
            if getattr(self, name) == 0.0:
                raise BadRequestError(
                    f"{name}={getattr(self, name)} is not possible: give a number {_HINTS[name]}", param=name
                )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequestError(
                f"min_tokens={self.min_tokens} is larger than max_tokens={self.max_tokens}: lower it",
                param="min_tokens",
            )
        if any(not text for text in self.stop):
            raise BadRequestError("stop holds an empty string: remove it", param="stop")
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
                    top = "" if vocab_size is None else f" (0 to {vocab_size - 1})"
                    raise BadRequestError(f"{name} names token id {token_id}, outside the vocabulary{top}", param=name)
        for token_id, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise BadRequestError(
                    f"logit_bias of token {token_id} is {bias}: give a number from -100 to 100", param="logit_bias"
                )


_HINTS: dict[str, str] = {
    "top_p": "in (0, 1]; 1 is off",
    "top_k": f"from 0 to {2**31 - 1}; 0 is off",
    "repetition_penalty": "in (0, 10]; 1 is off",
}

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 100),
    ("top_p", 0, 1),
    ("top_k", 0, 2**31 - 1),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0, 10),
    ("seed", -_MAX_SEED, _MAX_SEED),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("n", 1, MAX_N),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
)


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sequence to generate (n > 1 is expanded into n requests before this point).

    seed             resolved: the draw for output position p is a pure function of (seed, p, choice_index)
    choice_index     which of the n choices of the user's request this is
    priority         lower runs sooner; ties are first come, first served
    arrival_s        host-monotonic seconds at the door
    eos_token_ids    ids that end the text unless ignore_eos
    block_hashes     digests of the prompt's full blocks, computed once at the door (core/kv_hashes)
    grammar          what the output must keep to
    output_token_ids  what another worker has drawn for it before it was lost: this one goes on behind them, as if it
                     had drawn them itself
    prediction_token_ids  what the client expects the output to look like; a hint, never a promise
    tenant, session_id    who pays, and the agent conversation it belongs to; None: not told
    parent_session_id     of a sub-agent: the session that started this one
    budget_usd            dollars its session may cost (without a session: the request itself); None: no such limit
    """

    request_id: str
    model: str
    prompt_token_ids: list[int]
    sampling: SamplingParams = SamplingParams()
    seed: int = 0
    choice_index: int = 0
    priority: int = 0
    arrival_s: float = 0.0
    eos_token_ids: tuple[int, ...] = ()
    block_hashes: list[bytes] = []
    cache_salt: str | None = None
    tenant: str | None = None
    session_id: str | None = None
    parent_session_id: str | None = None
    budget_usd: float | None = None
    grammar: Grammar | None = None
    prediction_token_ids: list[int] = []
    output_token_ids: list[int] = []


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """Log-probability of one token, with the `top` alternatives as (token id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenDelta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """New tokens of one request out of one step, with what they cost.

    token_ids           new output ids, in order (the end-of-sequence or stop token included)
    logprobs            one per id when asked for
    prompt_logprobs     once, with the first delta, when asked for; one per prompt token from the second on
    finish_reason       set on the last delta
    stop_token_id       the token that ended the text, None otherwise
    num_cached_tokens   prompt tokens that came out of the prefix cache; set on the first delta
    queue_s             from the request's arrival to the start of its first step; set on the first delta
    seconds             this request's share of the seconds of the steps since its last delta; of it
    prefill_s           for rows of tokens that were known before the step: prompt, and what preemption threw away
    draft_s             for proposing drafts and keeping draft caches
    rejected_s          for rows of drafts that were not accepted
    transfer_s          for moving its KV blocks between devices; the rest is decoding
    num_prefill_tokens  rows that prefill_s paid for
    num_draft_tokens    drafts verified for it in these steps
    num_rejected_tokens of them, those that did not stay: rows that rejected_s paid for
    error               (code, message) when finish_reason is ERROR
    error_param         the request's field that is at fault, where one is
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int | None = None
    queue_s: float | None = None
    seconds: float = 0.0
    error: tuple[str, str] | None = None
    error_param: str | None = None
    num_draft_tokens: int = 0
    num_rejected_tokens: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    rejected_s: float = 0.0
    transfer_s: float = 0.0
    num_prefill_tokens: int = 0


def check_prompt(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int, kv_capacity_tokens: int) -> int:
    """Return the most output tokens this request may have, or raise a typed error when it can never fit.

    A prompt must leave room for at least one output token in both the context and the KV pool. An explicit
    max_tokens that does not fit is refused rather than shortened in silence.
    """
    if num_prompt_tokens == 0:
        raise BadRequestError("the prompt is empty: give at least one token", param="prompt")
    limit, what = min((max_model_len, "the model's context"), (kv_capacity_tokens, "the KV cache of one worker"))
    room = limit - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens; {what} holds {limit}, and one must stay free for output: "
            "shorten the prompt",
            param="prompt",
        )
    if max_tokens is not None and max_tokens > room:
        raise ContextLengthError(
            f"{num_prompt_tokens} prompt tokens + max_tokens={max_tokens} exceed {limit} tokens ({what}): "
            f"ask for at most {room}",
            param="max_tokens",
        )
    return room if max_tokens is None else max_tokens
