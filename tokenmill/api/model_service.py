"""What the door knows of each served model: its card, its tokenizer, its chat encoding; prompts become token ids here.

Tokenizers are loaded once, in a thread, and kept while their digest stays. Long prompts are encoded in a thread too,
so that running streams do not stall. Not responsible for: which worker serves a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenmill.api.config import ApiConfig
from tokenmill.api.generation import EncodedPrompt
from tokenmill.api.openai_types import Message, TemplateFields
from tokenmill.api.ports import DispatcherPort
from tokenmill.core.errors import BadRequestError, CapabilityError, ConfigError, ModelNotFoundError, UnavailableError
from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.model_card import ModelCard
from tokenmill.text.chat import ChatEncoding, ReplayingEncoding, load_encoding
from tokenmill.text.encodings.replay import ReplayStore
from tokenmill.text.parsers.registry import starts_in_reasoning
from tokenmill.text.tokenizer import Tokenizer

T = TypeVar("T")
_NUM_THREADS = 2
#: An opening tag of reasoning stands at the very end of a prompt; white space may follow it.
_NUM_TAIL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class TextTools:
    tokenizer: Tokenizer
    encoding: ChatEncoding
    replay: ReplayStore


class ModelService:
    """One model as of one card. `tools` is None for a model that is served without a tokenizer."""

    def __init__(self, card: ModelCard, tools: TextTools | None, threads: ThreadPoolExecutor, long_chars: int) -> None:
        self.card = card
        self.tokenizer = tools.tokenizer if tools else None
        self._encoding = tools.encoding if tools else None
        self._replay = tools.replay if tools else None
        self._threads = threads
        self._long_chars = long_chars

    async def encode_prompt(
        self,
        prompt: str | list[int],
        *,
        add_special_tokens: bool = True,
        salt: str | None = None,
        param: str = "prompt",
    ) -> EncodedPrompt:
        """Text or ids; typed errors for what this model cannot take, naming `param`."""
        if not prompt:
            raise BadRequestError(f"{param} is empty: give at least one token", param=param)
        if isinstance(prompt, str):
            tokenizer = self.require_tokenizer(param)
            return await self._run(
                len(prompt), lambda: self._hashed(tokenizer.encode(prompt, add_special_tokens), salt, prompt)
            )
        self.check_ids(prompt, param)
        return await self._run(len(prompt), lambda: self._hashed(prompt, salt, None))

    async def encode_text(self, text: str) -> list[int]:
        """Text that stands in the middle of something."""
        tokenizer = self.require_tokenizer("prediction")
        return await self._run(len(text), lambda: tokenizer.encode(text, add_special_tokens=False))

    async def encode_chat(
        self,
        messages: Sequence[Message],
        fields: TemplateFields,
        *,
        tools: Sequence[Any] | None = None,
        response_format: Any = None,
        salt: str | None = None,
        scope: str = "",
    ) -> EncodedPrompt:
        """
        tools, response_format  as in the request, for encodings that show them to the model
        salt                    of the cache keys
        scope                   whose earlier answers may be replayed
        """
        if not messages:
            raise BadRequestError("messages is empty: give at least one message", param="messages")
        self.require_tokenizer("messages")
        encoding = self._encoding
        assert encoding is not None, "tools come in pairs"
        dicts = [message.model_dump(exclude_unset=True) for message in messages]
        kwargs = template_kwargs(fields)
        if response_format is not None:
            kwargs["response_format"] = response_format
        if isinstance(encoding, ReplayingEncoding):
            kwargs |= {"replay": self._replay, "replay_scope": scope}
        return await self._run(
            sum(len(str(message.content)) for message in messages),
            lambda: self._hashed(encoding.encode(dicts, tools, **kwargs), salt, None),
        )

    def opens_reasoning(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the answer to this prompt begins inside the model's reasoning."""
        encoding, tokenizer = self._encoding, self.tokenizer
        if isinstance(encoding, ReplayingEncoding):
            return encoding.opens_reasoning(prompt_token_ids)
        if self.card.reasoning_parser is None or tokenizer is None:
            return False
        return starts_in_reasoning(tokenizer.decode(prompt_token_ids[-_NUM_TAIL_TOKENS:], skip_special_tokens=False))

    @property
    def can_replay(self) -> bool:
        return isinstance(self._encoding, ReplayingEncoding)

    async def remember(
        self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int], message: dict[str, Any], *, scope: str
    ) -> None:
        """Keep an answer so that the next turn's prompt holds the very ids that were sampled."""
        encoding, replay = self._encoding, self._replay
        assert isinstance(encoding, ReplayingEncoding) and replay is not None, "asked only when it can"
        await self._run(
            len(output_token_ids),
            lambda: encoding.remember(replay, prompt_token_ids, output_token_ids, message, scope=scope),
        )

    def require_tokenizer(self, param: str) -> Tokenizer:
        if self.tokenizer is None:
            raise CapabilityError(
                f"{param} needs a tokenizer, and model {self.card.name!r} is served without one: send token ids as "
                "`prompt` to /v1/completions, and stop_token_ids for stops",
                param=param,
            )
        return self.tokenizer

    def check_ids(self, ids: list[int], param: str) -> None:
        """Raise a typed error that names the first id outside the vocabulary."""
        if not ids or (min(ids) >= 0 and max(ids) < self.card.vocab_size):
            return
        bad = next(i for i in ids if not 0 <= i < self.card.vocab_size)
        raise BadRequestError(
            f"{param} holds token id {bad}; the model knows 0 to {self.card.vocab_size - 1}: use its tokenizer",
            param=param,
        )

    def _hashed(self, ids: list[int], salt: str | None, text: str | None) -> EncodedPrompt:
        card = self.card
        hasher = BlockHasher(card.block_size, card.weights_version, salt=salt, algorithm=card.hash_algorithm)
        return EncodedPrompt(ids, hasher.hash_blocks(ids), text)

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        """Short work here, long work in a thread (encoding lets go of the interpreter lock)."""
        if size <= self._long_chars:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


#: Arguments of an encoding that a template variable must not replace.
_RESERVED = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"}
    | {"chat_template_kwargs", "replay", "replay_scope"}
)


def template_kwargs(fields: TemplateFields) -> dict[str, Any]:
    """The variables of a chat template that the request sets."""
    kwargs = dict(fields.chat_template_kwargs or {})
    for name in sorted(kwargs.keys() & _RESERVED):
        raise BadRequestError(
            f"chat_template_kwargs.{name} is not a free variable: set it beside chat_template_kwargs, if at all",
            param=f"chat_template_kwargs.{name}",
        )
    if fields.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    is_thinking = _thinking(fields)
    if is_thinking is not None and not kwargs.keys() & {"enable_thinking", "thinking", "thinking_mode"}:
        kwargs |= {"enable_thinking": is_thinking, "thinking": is_thinking}
    kwargs["continue_final_message"] = bool(fields.continue_final_message)
    kwargs["add_generation_prompt"] = fields.add_generation_prompt
    return kwargs


def _thinking(fields: TemplateFields) -> bool | None:
    """The switch of thinking, whichever way it was written; None: as the model is used to."""
    said = [value for value in (fields.thinking, fields.enable_thinking) if value is not None]
    if len(set(said)) > 1:
        raise BadRequestError("thinking and enable_thinking say opposite things: drop one", param="enable_thinking")
    return said[0] if said else False if fields.reasoning_effort == "none" else None


class ModelServices:
    """All served models, by name and alias. Cards are asked for each time: workers come, go and restart."""

    def __init__(self, dispatcher: DispatcherPort, config: ApiConfig) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="encode")
        self._services: dict[str, ModelService] = {}
        self._tools: dict[tuple[str, str | None, str], asyncio.Task[TextTools]] = {}

    def cards(self) -> dict[str, ModelCard]:
        """Name -> card, aliases included."""
        cards = dict(self._dispatcher.cards())
        return cards | {alias: cards[name] for alias, name in self._config.model_aliases.items() if name in cards}

    def card(self, name: str | None) -> ModelCard:
        """The card called `name`; without a name, that of the only model."""
        cards = self.cards()
        if name is None and not cards:
            raise UnavailableError("no worker has announced its model yet: try again in a moment")
        if name is None:
            if len({card.name for card in cards.values()}) == 1:
                return next(iter(cards.values()))
            raise BadRequestError(f"model is missing: choose one of {', '.join(sorted(cards))}", param="model")
        if name not in cards:
            known = sorted({*cards, *self._dispatcher.models()})
            if self._config.model_aliases.get(name, name) in known:
                raise UnavailableError(f"model {name!r} is still starting: try again in a moment")
            raise ModelNotFoundError(
                f"model {name[:100]!r} is not served here: choose one of {', '.join(known) or '(none yet)'}",
                param="model",
            )
        return cards[name]

    async def get(self, name: str | None) -> ModelService:
        card = self.card(name)
        service = self._services.get(card.name)
        if service is None or service.card != card:
            tools = None if card.tokenizer_path is None else await self._load(card)
            service = ModelService(card, tools, self._threads, self._config.long_prompt_chars)
            self._services[card.name] = service
        return service

    async def preload(self) -> None:
        """Load every tokenizer that a worker has announced so far."""
        for card in list(self._dispatcher.cards().values()):
            await self.get(card.name)

    async def _load(self, card: ModelCard) -> TextTools:
        """One load for all who wait; a failed one is not kept."""
        key = (str(card.tokenizer_path), card.tokenizer_digest, card.chat_encoding)
        if key not in self._tools:
            self._tools[key] = asyncio.create_task(asyncio.to_thread(self._load_now, card))
        task = self._tools[key]
        try:
            return await asyncio.shield(task)
        except Exception:
            self._tools.pop(key, None)
            raise

    def _load_now(self, card: ModelCard) -> TextTools:
        tokenizer = Tokenizer.load(Path(str(card.tokenizer_path)))
        if card.tokenizer_digest is not None and tokenizer.digest != card.tokenizer_digest:
            raise ConfigError(
                f"the tokenizer at {card.tokenizer_path} is not the one model {card.name!r} was started with: restart"
            )
        if self._config.chat_template is not None:
            tokenizer.chat_templates = {"default": _read_template(self._config.chat_template, card)}
        return TextTools(tokenizer, load_encoding(card.chat_encoding, tokenizer), ReplayStore())

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _read_template(path: str, card: ModelCard) -> str:
    if card.chat_encoding != "jinja":
        raise ConfigError(
            f"--chat-template is for Jinja templates; model {card.name!r} has the encoding {card.chat_encoding!r}: "
            "leave the flag out"
        )
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read ({error}): give a text file") from None
