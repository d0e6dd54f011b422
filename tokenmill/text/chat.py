"""From chat messages to token ids: the encodings by name, and the built-in one that runs the model's Jinja template.

Not responsible for: reading the answer (tool calls, reasoning), or the shape of messages (messages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import SecurityError

from tokenmill.core.errors import BadRequestError, CapabilityError, CheckpointError
from tokenmill.core.registry import Registry
from tokenmill.text.encodings.replay import ReplayStore
from tokenmill.text.messages import Message, normalise_messages, normalise_tools
from tokenmill.text.render_budget import RenderLimitError
from tokenmill.text.sandbox import BoundedEnvironment, TemplateRefusal, compile_template, render
from tokenmill.text.tokenizer import Tokenizer

#: Appended to the message that is to be continued, to find where its text ends in the rendered prompt. The blank at
#: its end tells whether the template trims content. Private-use characters: no template writes them itself.
_END_MARK = "\ue000end of message\ue001 "
_MAX_REASON_CHARS = 300


class ChatEncoding(Protocol):
    """How a model wants a conversation written. Any thread may use it."""

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **template_kwargs: Any) -> str:
        """The prompt as text, special tokens included."""
        ...

    def encode(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **template_kwargs: Any) -> list[int]:
        """The prompt as token ids, with at most one begin token; BadRequestError when it cannot be written."""
        ...


@runtime_checkable
class ReplayingEncoding(ChatEncoding, Protocol):
    """An encoding that knows where reasoning begins, and writes earlier answers with the ids that were sampled.

    Its `encode` also takes `replay` and `replay_scope`.
    """

    def opens_reasoning(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the answer to this prompt begins inside the reasoning."""
        ...

    def remember(
        self,
        replay: ReplayStore,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        message: Mapping[str, Any],
        *,
        scope: str = "",
    ) -> bool:
        """Keep an answer for `encode`; False, and nothing is kept, when the message is not what the ids say."""
        ...


CHAT_ENCODINGS = Registry(
    "chat encoding",
    "tokenmill.chat_encodings",
    {
        "deepseek_v4": "tokenmill.text.encodings.deepseek_v4:DeepseekV4Encoding",
        "deepseek_v4_0731": "tokenmill.text.encodings.deepseek_v4:DeepseekV4Encoding0731",
        "jinja": "tokenmill.text.chat:JinjaEncoding",
    },
)


def load_encoding(name: str, tokenizer: Tokenizer) -> ChatEncoding:
    """The encoding `name` for a model with `tokenizer`; ConfigError when unknown, CheckpointError when it is broken."""
    factory: Callable[[Tokenizer], ChatEncoding] = CHAT_ENCODINGS.load(name)
    return factory(tokenizer)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """`knows_none`: the template may test values for none."""

    template: Any
    knows_none: bool


class JinjaEncoding:
    """Runs the chat template that came with the tokenizer, as transformers' apply_chat_template does.

    A model without a template can still be loaded: asking it to chat gives a CapabilityError.
    """

    def __init__(self, tokenizer: Tokenizer, *, now: Callable[[], datetime] = datetime.now) -> None:
        self._tokenizer = tokenizer
        environment = BoundedEnvironment(now)
        self._templates = {
            name: _Compiled(_compile(environment, name, source), "none" in source.lower())
            for name, source in tokenizer.chat_templates.items()
        }

    def encode(self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **template_kwargs: Any) -> list[int]:
        # The template writes the begin token where the model wants one; the tokenizer must not add a second.
        return self._tokenizer.encode(self.render(messages, tools, **template_kwargs), add_special_tokens=False)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = None,
        *,
        documents: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """
        chat_template           name of one of the model's templates; default: "tool_use" with tools, else "default"
        add_generation_prompt   end with the opening of the answer; default: yes, unless continuing
        continue_final_message  leave the last message open, so that the answer goes on where it ends
        template_kwargs         further variables of the template, e.g. enable_thinking
        """
        conversation, tool_list = normalise_messages(messages), normalise_tools(tools)
        if add_generation_prompt and continue_final_message:
            raise BadRequestError(
                "add_generation_prompt and continue_final_message exclude each other: drop one",
                param="continue_final_message",
            )
        variables = {
            **self._tokenizer.special_tokens,
            **template_kwargs,
            "messages": _with_end_mark(conversation) if continue_final_message else conversation,
            "tools": tool_list,
            "documents": documents,
            "add_generation_prompt": not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
        }
        text = _write(self._choose(chat_template, tool_list), variables)
        return _up_to_end_mark(text) if continue_final_message else text

    def _choose(self, name: str | None, tools: Any) -> _Compiled:
        templates = self._templates
        if not templates:
            raise CapabilityError(
                "this model has no chat template: send your text to /v1/completions", param="messages"
            )
        if name is None:
            name = "tool_use" if tools and "tool_use" in templates else "default"
        if name not in templates:
            raise BadRequestError(
                f"the model has no chat template {name!r}: possible are {', '.join(sorted(templates))}",
                param="chat_template",
            )
        return templates[name]


def _compile(environment: BoundedEnvironment, name: str, source: str) -> Any:
    try:
        return compile_template(environment, source)
    except TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
    except (TemplateError, RenderLimitError) as error:
        reason = str(error)
    raise CheckpointError(f"the model's chat template {name!r} cannot be used: {reason}; correct it")


def _write(chosen: _Compiled, variables: dict[str, Any]) -> str:
    """Templates disagree on the content of a message that is nothing but calls: some test it for none, others join it
    as it is. None for the first; where the template knows no none, or fails with it, an empty text."""
    messages = variables["messages"]
    if chosen.knows_none or all(message["content"] is not None for message in messages):
        try:
            return _render(chosen.template, variables)
        except _WrongTypeError:
            if all(message["content"] is not None for message in messages):
                raise
    with_texts = [{**message, "content": message["content"] or ""} for message in messages]
    return _render(chosen.template, variables | {"messages": with_texts})


class _WrongTypeError(BadRequestError):
    """An expression of the template met a value of a type it was not made for."""


def _render(template: Any, variables: dict[str, Any]) -> str:
    try:
        return render(template, variables)
    except TemplateRefusal as error:
        reason = f"refuses these messages: {_short(error)}"
    except RenderLimitError as error:
        reason = f"was stopped because {error}: send less, or use /v1/completions"
    except SecurityError as error:
        reason = f"does what the sandbox forbids ({_short(error)}): use /v1/completions"
    except TypeError as error:
        raise _WrongTypeError(f"the model's chat template {_met_a_value(error)}", param="messages") from None
    except Exception as error:  # an expression of the template met a value it was not made for
        reason = _met_a_value(error)
    raise BadRequestError(f"the model's chat template {reason}", param="messages")


def _met_a_value(error: Exception) -> str:
    return f"cannot write these messages ({type(error).__name__}: {_short(error)}): check roles and fields"


def _short(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + "…"


def _with_end_mark(messages: list[Message]) -> list[Message]:
    last = messages[-1]
    if not isinstance(last["content"], str):
        raise BadRequestError(
            "continue_final_message needs a last message with content: give it some", param="continue_final_message"
        )
    return [*messages[:-1], {**last, "content": last["content"] + _END_MARK}]


def _up_to_end_mark(text: str) -> str:
    """A template that trims content would have trimmed the message's own blanks too."""
    at = text.rfind(_END_MARK.rstrip())
    if at < 0:
        raise BadRequestError(
            "the model's chat template does not write the last message as it is, so it cannot be continued: "
            "drop continue_final_message",
            param="continue_final_message",
        )
    return text[:at] if text.startswith(_END_MARK, at) else text[:at].rstrip()
