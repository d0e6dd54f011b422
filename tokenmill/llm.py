"""The offline API: `LLM("smollm2").generate(["Hello"])`. One engine in this process, no server.

Not responsible for: concurrency (one caller at a time) or HTTP.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.core.errors import CapabilityError, from_code
from tokenmill.core.grammar import Grammar
from tokenmill.core.request import FinishReason, Request, SamplingParams
from tokenmill.cost.rates import resolve_rate
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine
from tokenmill.models.store import resolve_model
from tokenmill.text.chat import load_encoding
from tokenmill.text.logprobs import TextLogprob
from tokenmill.text.output import OutputProcessor
from tokenmill.text.tokenizer import Tokenizer

Prompt = str | list[int]


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `seconds` and `usd` are this choice's share of the steps it was in."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TextLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    seconds: float = 0.0
    usd: float = 0.0


@dataclass(slots=True)
class RequestOutput:
    """Everything that came of one prompt; `outputs` holds its n choices."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: tuple[TextLogprob, ...] | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text


class LLM:
    """
    model     path, alias or hf:org/name (see `tokenmill models`)
    settings  fields of EngineConfig, e.g. deterministic=True, max_num_seqs=8
    """

    def __init__(
        self, model: str, *, price_per_hour: float | None = None, watts: float | None = None, **settings: Any
    ) -> None:
        self.engine: Engine = load_engine(resolve_model(model), EngineConfig.parse(settings), name=model)
        path = self.engine.card.tokenizer_path
        self.tokenizer = None if path is None else Tokenizer.load(path)
        self.rate = resolve_rate(price_per_hour=price_per_hour, watts=watts)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        grammar: Grammar | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt (text or token ids), in order. Typed errors are raised before anything runs.

        grammar      what every output must keep to
        on_progress  called with (finished choices, all choices) after each step
        """
        batch: list[Any] = [prompts] if isinstance(prompts, str) or _is_token_ids(prompts) else list(prompts)
        params = sampling or SamplingParams()
        per_prompt = [params] * len(batch) if isinstance(params, SamplingParams) else list(params)
        assert len(per_prompt) == len(batch), f"{len(batch)} prompts, {len(per_prompt)} sampling parameters"
        run = _Run(self)
        try:
            for prompt, one in zip(batch, per_prompt, strict=True):
                run.add(self._encode(prompt), one, grammar)
            return run.finish(on_progress)
        finally:
            run.abort_rest()

    def chat(
        self,
        messages: list[dict[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        grammar: Grammar | None = None,
        **template_kwargs: Any,
    ) -> RequestOutput:
        """Answer one conversation, rendered with the model's chat template."""
        encoding = load_encoding(self.engine.card.chat_encoding, self._tokenizer_or_error())
        return self.generate([encoding.encode(messages, **template_kwargs)], sampling, grammar=grammar)[0]

    def _encode(self, prompt: Prompt) -> list[int]:
        return self._tokenizer_or_error().encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _tokenizer_or_error(self) -> Tokenizer:
        if self.tokenizer is None:
            raise CapabilityError(f"model {self.engine.card.name} has no tokenizer: give token ids", param="prompt")
        return self.tokenizer


def _is_token_ids(prompts: Any) -> bool:
    return isinstance(prompts, list) and bool(prompts) and all(isinstance(p, int) for p in prompts)


class _Run:
    """The choices of one generate() call on their way through the engine."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._outputs: list[RequestOutput] = []
        self._choices: dict[str, tuple[RequestOutput, CompletionOutput, OutputProcessor]] = {}
        self._num_choices = 0

    def add(self, prompt_token_ids: list[int], sampling: SamplingParams, grammar: Grammar | None) -> None:
        request_output = RequestOutput(prompt_token_ids, [])
        self._outputs.append(request_output)
        sampling.check(self._llm.engine.card.vocab_size)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        one = SamplingParams(**{f: getattr(sampling, f) for f in sampling.__struct_fields__ if f != "n"})
        for index in range(sampling.n):
            request = Request(
                request_id=f"offline-{secrets.token_hex(8)}-{index}",
                model=self._llm.engine.card.name,
                prompt_token_ids=prompt_token_ids,
                sampling=one,
                seed=seed,
                choice_index=index,
                eos_token_ids=self._llm.engine.card.eos_token_ids,
                grammar=grammar,
            )
            self._llm.engine.add(request)
            choice = CompletionOutput(logprobs=None if one.logprobs is None else [])
            request_output.outputs.append(choice)
            processor = OutputProcessor(self._llm.tokenizer, prompt_token_ids, one)
            self._choices[request.request_id] = (request_output, choice, processor)
            self._num_choices += 1

    def finish(self, on_progress: Callable[[int, int], None] | None) -> list[RequestOutput]:
        while self._choices:
            for delta in self._llm.engine.step():
                self._take(delta)
            if on_progress is not None:
                on_progress(self._num_choices - len(self._choices), self._num_choices)
        return self._outputs

    def _take(self, delta: Any) -> None:
        if delta.error is not None:
            self._choices.pop(delta.request_id)
            code, message = delta.error
            raise from_code(code, message, delta.error_param)
        request_output, choice, processor = self._choices[delta.request_id]
        choice.seconds += delta.seconds
        choice.usd = choice.seconds * self._llm.rate.usd_per_hour / 3600
        choice.num_cached_tokens += delta.num_cached_tokens or 0
        text = processor.process(delta)
        if text.prompt_logprobs is not None:
            request_output.prompt_logprobs = text.prompt_logprobs
        choice.text += text.text
        choice.token_ids.extend(text.token_ids)
        if choice.logprobs is not None and text.logprobs:
            choice.logprobs.extend(text.logprobs)
        if text.should_abort:
            self._llm.engine.abort(delta.request_id)
        if text.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = text.finish_reason, text.stop_reason
            del self._choices[delta.request_id]

    def abort_rest(self) -> None:
        for request_id in self._choices:
            self._llm.engine.abort(request_id)
