"""Errors of the chat path in the words of another API: the path of the fault is that of the client's own body. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tokenmill.api.errors import from_validation
from tokenmill.api.openai_types import ChatRequest
from tokenmill.core.errors import TokenmillError

#: Path in the chat request -> path in the body that it was made of; the longest one that fits counts.
Paths = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChatBody:
    """The body of a chat request (its `fields`) that was made of another API's."""

    fields: dict[str, Any]
    paths: Paths


@contextmanager
def retelling(paths: Paths) -> Iterator[None]:
    """Typed errors from inside name the client's own fields."""
    try:
        yield
    except TokenmillError as error:
        retell(error, paths)
        raise


def as_chat_request(chat: ChatBody) -> ChatRequest:
    """Validated like one that a client sent."""
    try:
        return ChatRequest.model_validate(chat.fields)
    except ValidationError as error:
        raise from_validation(error) from None


def retell(error: TokenmillError, paths: Paths) -> None:
    """Change `error` in place; a fault of a field that both APIs call the same stays as it is."""
    param = error.param
    if param is None:
        return
    prefix = next((prefix for prefix in _prefixes(param) if prefix in paths), None)
    if prefix is None:
        return
    told = paths[prefix] + param[len(prefix) :]
    start = "^" if param.isalpha() else r"(?<![\w.])"  # `messages` may also be meant as a word
    error.message = re.sub(rf"{start}{re.escape(param)}(?!\w)", lambda _: told, error.message)
    error.param = told


def behind_system(paths: Paths) -> dict[str, str]:
    """The paths of messages after one was put in front of them: `messages[3].content` is now `messages[4].content`."""

    def shifted(path: str) -> str:
        return re.sub(r"^messages\[(\d+)\]", lambda found: f"messages[{int(found[1]) + 1}]", path)

    return {shifted(path): told for path, told in paths.items()}


def _prefixes(path: str) -> Iterator[str]:
    """`a[0].b`, `a[0]`, `a`."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
