"""Wishes that a well-formed request may hold and that this build cannot serve: refused by name, never ignored.

Serving one of them starts with taking its line out of the table. Values that ask for nothing are let through.
Not responsible for: content parts (text/messages.py refuses those that are no text).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenmill.api.openai_types import ChatRequest, CompletionRequest, TemplateFields
from tokenmill.core.errors import CapabilityError


def _is_one_of(*harmless: Any) -> Callable[[Any], bool]:
    return lambda value: any(value == option and type(value) is type(option) for option in harmless)


_nothing = _is_one_of(False, "", [], {})

#: field -> (is the value harmless?, what can be asked instead); null is always harmless.
_ANY_ROUTE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "guided_whitespace_pattern": (_nothing, "JSON is written without line breaks"),
    "structural_tag": (_nothing, "use tools, or response_format"),
    "use_beam_search": (_nothing, "sampling only"),
    "length_penalty": (_is_one_of(1, 1.0), "it belongs to beam search"),
    "logits_processors": (_nothing, "use logit_bias"),
    "bad_words": (_nothing, "use logit_bias with -100"),
    "allowed_token_ids": (_nothing, "use logit_bias"),
    "truncate_prompt_tokens": (_nothing, "shorten the prompt before sending it"),
    "prompt_embeds": (_nothing, "send text or token ids"),
    "skip_special_tokens": (_is_one_of(True), "special tokens are never shown; ask for return_token_ids"),
    "return_tokens_as_token_ids": (_nothing, "ask for return_token_ids"),
    "kv_transfer_params": (_nothing, "the server places requests itself"),
}
_CHAT = {
    "modalities": (lambda value: isinstance(value, list) and set(map(str, value)) <= {"text"}, "only ['text']"),
    "audio": (_nothing, "text only"),
    "web_search_options": (_nothing, "put what the model should know into the messages"),
    "echo": (_nothing, "use /v1/completions"),
    "documents": (_nothing, "put them into a message"),
    "chat_template": (_nothing, "start the server with --chat-template"),
    "add_special_tokens": (_nothing, "the template writes them"),
    "functions": (_nothing, "use tools"),
    "function_call": (_is_one_of("none", "auto"), "use tool_choice"),
}
_COMPLETION = {
    "suffix": (_nothing, "put the whole context into the prompt"),
}


def refuse_unsupported_chat(body: ChatRequest) -> None:
    """Raise CapabilityError for the first field that asks for what cannot be served."""
    _refuse(body.model_extra or {}, _ANY_ROUTE | _CHAT)
    _refuse_best_of(body)


def refuse_unsupported_completion(body: CompletionRequest) -> None:
    _refuse(body.model_extra or {}, _ANY_ROUTE | _COMPLETION)
    _refuse_best_of(body)


def refuse_unsupported_template(body: TemplateFields) -> None:
    _refuse(body.model_extra or {}, {"chat_template": _CHAT["chat_template"]})


def _refuse(extra: dict[str, Any], table: dict[str, tuple[Callable[[Any], bool], str]]) -> None:
    for name in extra.keys() & table.keys():
        is_harmless, instead = table[name]
        if extra[name] is not None and not is_harmless(extra[name]):
            raise CapabilityError(f"{name} cannot be served as asked: {instead}", param=name)


def _refuse_best_of(body: ChatRequest | CompletionRequest) -> None:
    best_of, n = (body.model_extra or {}).get("best_of"), body.n or 1
    if best_of is not None and best_of != n:
        raise CapabilityError(f"best_of={best_of!r} with n={n} cannot be served: only best_of = n", param="best_of")
