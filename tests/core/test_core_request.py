"""Sampling ranges at their edges, prompts that fit and do not, and the request's way over the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tokenmill.core.errors import BadRequestError, ContextLengthError
from tokenmill.core.request import (
    MAX_LOGPROBS,
    MAX_N,
    FinishReason,
    Request,
    SamplingParams,
    TokenDelta,
    TokenLogprob,
    check_prompt,
)

NAN, INF = float("nan"), float("inf")
SEED = 2**63 - 1

INSIDE: list[tuple[str, list[Any]]] = [
    ("temperature", [0, 1e-9, 1.0, 100]),
    ("top_p", [1e-9, 0.5, 1]),
    ("top_k", [0, 1, 2**31 - 1]),
    ("min_p", [0, 0.5, 1]),
    ("presence_penalty", [-2, 0, 2]),
    ("frequency_penalty", [-2, 0, 2]),
    ("repetition_penalty", [1e-9, 1, 10]),
    ("seed", [None, -SEED, 0, SEED]),
    ("max_tokens", [None, 1, 2**31 - 1]),
    ("min_tokens", [0, 2**31 - 1]),
    ("n", [1, MAX_N]),
    ("logprobs", [None, 0, MAX_LOGPROBS]),
    ("prompt_logprobs", [None, 0, MAX_LOGPROBS]),
    ("stop", [(), ("a",), ("a", "\n")]),
    ("stop_token_ids", [(), (0, 99)]),
    ("logit_bias", [{}, {0: -100.0, 99: 100.0}]),
]
OUTSIDE: list[tuple[str, list[Any]]] = [
    ("temperature", [-0.001, 100.001, NAN, INF, -INF]),
    ("top_p", [0, -0.1, 1.0001, NAN]),
    ("top_k", [-1, 2**31]),
    ("min_p", [-0.1, 1.1, NAN]),
    ("presence_penalty", [-2.01, 2.01, NAN]),
    ("frequency_penalty", [-2.01, 2.01, INF]),
    ("repetition_penalty", [0, -1, 10.1, NAN]),
    ("seed", [-SEED - 1, SEED + 1]),
    ("max_tokens", [0, -1, 2**31]),
    ("min_tokens", [-1, 2**31]),
    ("n", [0, -1, MAX_N + 1]),
    ("logprobs", [-1, MAX_LOGPROBS + 1]),
    ("prompt_logprobs", [-1, MAX_LOGPROBS + 1]),
    ("stop", [("",), ("a", "")]),
    ("stop_token_ids", [(-1,), (100,)]),
    ("logit_bias", [{-1: 0.0}, {100: 0.0}, {1: 100.5}, {1: -100.5}, {1: NAN}]),
]


def flat(cases: list[tuple[str, list[Any]]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in cases for value in values]


@pytest.mark.parametrize(("name", "value"), flat(INSIDE))
def test_values_inside_their_range_pass(name: str, value: Any) -> None:
    SamplingParams(**{name: value}).check(vocab_size=100)


@pytest.mark.parametrize(("name", "value"), flat(OUTSIDE))
def test_values_outside_name_the_field_and_the_range(name: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        SamplingParams(**{name: value}).check(vocab_size=100)
    assert caught.value.param == name
    assert name in caught.value.message


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("max_tokens", 0, "give a number from 1 to 2147483647"),
        ("top_p", 2.0, "give a number in (0, 1]; 1 is off"),
        ("top_p", 0.0, "give a number in (0, 1]; 1 is off"),
        ("repetition_penalty", -1.0, "give a number in (0, 10]; 1 is off"),
        ("top_k", -2, "give a number from 0 to 2147483647; 0 is off"),
        ("min_p", 1.5, "give a number from 0 to 1"),
    ],
)
def test_the_range_is_told_as_it_is(name: str, value: Any, hint: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        SamplingParams(**{name: value}).check()
    assert caught.value.message == f"{name}={value} is not possible: {hint}"


def test_every_field_has_edge_cases() -> None:
    """A new field of SamplingParams must be added to the tables above, or here with a reason."""
    unbounded = {"include_stop_str_in_output", "ignore_eos"}  # booleans
    assert {name for name, _ in INSIDE} | unbounded == set(SamplingParams.__struct_fields__)


def test_token_ids_are_free_while_the_vocabulary_is_unknown() -> None:
    SamplingParams(stop_token_ids=(10**6,), logit_bias={10**6: 1.0}).check()


def test_min_tokens_above_max_tokens() -> None:
    SamplingParams(min_tokens=3, max_tokens=3).check()
    with pytest.raises(BadRequestError, match="min_tokens=4 is larger than max_tokens=3"):
        SamplingParams(min_tokens=4, max_tokens=3).check()


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "context", "capacity", "room"),
    [
        (1, None, 10, 100, 9),
        (9, None, 10, 100, 1),
        (5, 5, 10, 100, 5),
        (5, 1, 10, 100, 1),
        (5, None, 100, 8, 3),  # the KV pool is the tighter of the two
    ],
)
def test_prompt_fits(num_prompt: int, max_tokens: int | None, context: int, capacity: int, room: int) -> None:
    assert check_prompt(num_prompt, max_tokens, context, capacity) == room


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "context", "capacity", "param", "hint"),
    [
        (10, None, 10, 100, "prompt", "context"),
        (11, 1, 10, 100, "prompt", "shorten"),
        (8, None, 100, 8, "prompt", "KV cache"),
        (5, 6, 10, 100, "max_tokens", "at most 5"),
        (5, 4, 100, 8, "max_tokens", "at most 3"),
    ],
)
def test_prompt_does_not_fit(
    num_prompt: int, max_tokens: int | None, context: int, capacity: int, param: str, hint: str
) -> None:
    with pytest.raises(ContextLengthError, match=hint) as caught:
        check_prompt(num_prompt, max_tokens, context, capacity)
    assert caught.value.param == param


def test_empty_prompt() -> None:
    with pytest.raises(BadRequestError, match="empty") as caught:
        check_prompt(0, None, 10, 10)
    assert caught.value.param == "prompt"


def test_structs_round_trip_and_leave_defaults_out() -> None:
    request = Request(
        request_id="r",
        model="m",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(stop=("x",), logit_bias={3: -1.5}, seed=7),
        block_hashes=[b"\x00" * 16],
        tenant="t",
    )
    data = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(data, type=Request) == request
    assert b"cache_salt" not in data
    delta = TokenDelta(
        request_id="r",
        token_ids=(4,),
        logprobs=(TokenLogprob(4, -0.5, ((4, -0.5), (5, -1.0))),),
        finish_reason=FinishReason.STOP,
        stop_token_id=4,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=TokenDelta) == delta


def test_requests_are_immutable() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().temperature = 2.0  # type: ignore[misc]
