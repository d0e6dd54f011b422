"""The error tree: every code is unique and comes back as its own type from another process."""

from __future__ import annotations

import re

import pytest

from tokenmill.core import errors
from tokenmill.core.errors import TokenmillError, from_code


def tree(cls: type[TokenmillError] = TokenmillError) -> list[type[TokenmillError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in tree(sub))]


#: Other layers may add kinds of their own, which stay within their process.
LEAVES = [cls for cls in tree() if cls is not TokenmillError and cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_round_trip_by_code(cls: type[TokenmillError]) -> None:
    error = cls("asked for x: y is possible", param="x")
    back = from_code(error.code, error.message, error.param)
    assert type(back) is cls
    assert back.to_dict() == error.to_dict()
    assert str(back) == "asked for x: y is possible"


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in LEAVES]
    assert len(codes) == len(set(codes))


def test_unknown_code_is_an_internal_error() -> None:
    error = from_code("from_the_future", "what?")
    assert type(error) is errors.InternalError
    assert error.status == 500


@pytest.mark.parametrize("cls", LEAVES, ids=lambda cls: cls.__name__)
def test_body_has_openai_fields(cls: type[TokenmillError]) -> None:
    body = cls("m").to_dict()
    assert {"message", "type", "param", "code"} <= body.keys()
    assert body["param"] is None
    assert body.get("retryable", False) is cls.retryable
    assert 400 <= cls.status < 600


@pytest.mark.parametrize(
    ("cls", "status", "retryable"),
    [
        (errors.BadRequestError, 400, False),
        (errors.ContextLengthError, 400, False),
        (errors.CapabilityError, 400, False),
        (errors.ModelNotFoundError, 404, False),
        (errors.PayloadTooLargeError, 413, False),
        (errors.OverloadedError, 429, True),
        (errors.WorkerLostError, 503, True),
        (errors.UnavailableError, 503, True),
        (errors.DeadlineError, 504, True),
        (errors.InternalError, 500, False),
    ],
)
def test_status_and_retryable(cls: type[TokenmillError], status: int, retryable: bool) -> None:
    assert (cls.status, cls.retryable) == (status, retryable)


def test_docstring_draws_the_whole_tree() -> None:
    drawn = set(re.findall(r"(\w+Error)\b", errors.__doc__ or ""))
    assert drawn == {cls.__name__ for cls in tree() if cls.__module__ == errors.__name__}
