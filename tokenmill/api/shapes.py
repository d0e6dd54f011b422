"""How an answer looks: the chat and the completion spelling of one stream of `ChoiceDelta`s.

A shape lives for one answer and keeps what its spelling needs to remember. Whether deltas come one by one or merged,
the joined result is the same. Not responsible for: ids, usage and transport (chunks.py, answer.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.api import logprobs as spelled
from tokenmill.api.generation import ChoiceDelta, EncodedPrompt
from tokenmill.api.reading import assistant_message
from tokenmill.core.request import FinishReason
from tokenmill.text.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallStart,
    collect,
)


class Shape(Protocol):
    """`chunk_object`, `object` and `id_prefix` are OpenAI's words."""

    id_prefix: str
    object: str
    chunk_object: str

    def choice(self, delta: ChoiceDelta) -> dict[str, Any]:
        """A whole choice, from all its deltas merged."""
        ...

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        """The next piece of a choice; None when there is nothing to see in it."""
        ...


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """
    prompts               as encoded, n choices each
    has_prompt_logprobs   show them (they may also be there for `echo` alone)
    has_token_ids         add the ids of prompt and output; always for a model without tokenizer
    """

    prompts: Sequence[EncodedPrompt]
    n: int
    has_prompt_logprobs: bool
    has_token_ids: bool


class _Common:
    def __init__(self, options: ShapeOptions) -> None:
        self._options = options
        self._seen: set[int] = set()

    def _is_first(self, index: int) -> bool:
        is_first = index not in self._seen
        self._seen.add(index)
        return is_first

    def _is_visible(self, delta: ChoiceDelta) -> bool:
        return bool(delta.text or delta.finish_reason or (self._options.has_token_ids and delta.token_ids))

    def _prompt(self, index: int) -> EncodedPrompt:
        return self._options.prompts[index // self._options.n]

    def _ending(self, delta: ChoiceDelta) -> dict[str, Any]:
        """The keys that both spellings share."""
        keys: dict[str, Any] = {"finish_reason": delta.finish_reason}
        if delta.finish_reason is FinishReason.STOP:
            keys["stop_reason"] = delta.stop_reason
        if self._options.has_token_ids:
            keys["token_ids"] = delta.token_ids
        return keys

    def _prompt_keys(self, delta: ChoiceDelta) -> dict[str, Any]:
        """vLLM's extras about the prompt, with the first piece of a choice."""
        keys: dict[str, Any] = {}
        if self._options.has_prompt_logprobs and delta.prompt_logprobs is not None:
            keys["prompt_logprobs"] = spelled.prompt_logprobs(delta.prompt_logprobs)
        if self._options.has_token_ids:
            keys["prompt_token_ids"] = self._prompt(delta.index).token_ids
        return keys


class ChatShape(_Common):
    id_prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def choice(self, delta: ChoiceDelta) -> dict[str, Any]:
        message = assistant_message(collect(delta.events))
        return {"index": delta.index, "message": message, **self._rest(delta), **self._prompt_keys(delta)}

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        news = _news(delta.events)
        if not (news or delta.finish_reason or (self._options.has_token_ids and delta.token_ids)):
            return None
        is_first = self._is_first(delta.index)
        if is_first:
            news = {"role": "assistant", "content": "", **news}
        extras = self._prompt_keys(delta) if is_first else {}
        return {"index": delta.index, "delta": news, **self._rest(delta), **extras}

    def _rest(self, delta: ChoiceDelta) -> dict[str, Any]:
        rows = delta.logprobs
        shaped = None if rows is None else spelled.chat_logprobs(rows)
        ending = self._ending(delta)
        if delta.finish_reason is FinishReason.STOP and delta.has_whole_calls:
            ending["finish_reason"] = "tool_calls"
        return {"logprobs": shaped, **ending}


def _news(events: Sequence[Event]) -> dict[str, Any]:
    """The `delta` of a chunk; {} when there is nothing to see in the events."""
    news: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case ReasoningDelta(text):
                news["reasoning"] = news["reasoning_content"] = news.get("reasoning", "") + text
            case ContentDelta(text):
                news["content"] = news.get("content", "") + text
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call_id, "type": "function", "function": function}
            case ToolCallArgumentsDelta(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
    if calls:
        news["tool_calls"] = list(calls.values())
    return news


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt to be repeated before the output.

    first_token  name of its first token
    shift        from offsets in the prompt's decoded text to offsets in `text` (a begin token is not in `text`)
    """

    text: str
    first_token: str
    shift: int = 0


class CompletionShape(_Common):
    id_prefix, object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, options: ShapeOptions, echoes: Sequence[Echo] | None) -> None:
        """`echoes`: one per prompt, or None when they are not wanted."""
        super().__init__(options)
        self._echoes = echoes

    def choice(self, delta: ChoiceDelta) -> dict[str, Any]:
        return self._piece(delta, is_first=True)

    def chunk(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        return self._piece(delta, is_first=self._is_first(delta.index)) if self._is_visible(delta) else None

    def _piece(self, delta: ChoiceDelta, is_first: bool) -> dict[str, Any]:
        echo = None if self._echoes is None else self._echoes[delta.index // self._options.n]
        text = echo.text + delta.text if echo is not None and is_first else delta.text
        extras = self._prompt_keys(delta) if is_first else {}
        logprobs = _logprobs(delta, echo, is_first)
        return {"index": delta.index, "text": text, "logprobs": logprobs, **self._ending(delta), **extras}


def _logprobs(delta: ChoiceDelta, echo: Echo | None, is_first: bool) -> dict[str, Any] | None:
    if delta.logprobs is None:
        return None
    shaped = spelled.completion_logprobs(delta.logprobs, 0 if echo is None else len(echo.text))
    if echo is None or not is_first:
        return shaped
    return spelled.join(spelled.echoed_logprobs(echo.first_token, delta.prompt_logprobs or (), echo.shift), shaped)
