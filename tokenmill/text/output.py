"""From token deltas to text deltas: the one place where ids become text, streaming or not, offline or online. Pure.

`usage` rule: completion tokens are the ids that were generated up to the end of the answer, the end-of-sequence or
stop token and the token that completed a stop string included. Ids that the engine made after that point (it learns
of a stop string a step or more late) are overrun: neither shown nor counted in usage, but in `num_overrun_tokens`.

Not responsible for: raising errors that came with a delta, reasoning and tool calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.core.errors import CapabilityError
from tokenmill.core.request import FinishReason, SamplingParams, TokenDelta, TokenLogprob
from tokenmill.text.detokenizer import IncrementalDetokenizer
from tokenmill.text.logprobs import TextLogprob, describe, describe_prompt
from tokenmill.text.stop_matcher import StopMatcher
from tokenmill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one token delta added to the answer.

    text, token_ids    new since the last delta; an id comes with the first character it is part of, so both may be
                       held back for a while. At the end all ids have come, those without text too
    logprobs           one per entry of token_ids when asked for
    prompt_logprobs    once, when the token delta brought them: from the second prompt token on
    finish_reason      set once, on the last delta that brings anything
    stop_reason        the stop string, or the id out of stop_token_ids, that ended the answer; else None
    num_output_tokens  completion tokens so far, those held back included (see the usage rule)
    should_abort       the answer has ended but the engine does not know it yet
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_output_tokens: int = 0
    should_abort: bool = False
    prompt_logprobs: tuple[TextLogprob, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing that a client would want a chunk for."""
        return not self.text and not self.token_ids and self.finish_reason is None and self.prompt_logprobs is None


@dataclass(frozen=True, slots=True)
class _Held:
    """A token whose text has not been shown: `start` is where it begins, in characters."""

    token_id: int
    logprob: TokenLogprob | None
    start: int
    has_text: bool


class OutputProcessor:
    """The text side of one request; feed it every token delta in order, however the engine cut them.

    A stop string fires with the token that completes it, unless that is among the first `min_tokens`. The text of
    end-of-sequence and stop tokens is hidden. tokenizer None: ids only, the text stays empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        if tokenizer is None and sampling.stop:
            raise CapabilityError(
                "stop strings need a tokenizer, which this model lacks: use stop_token_ids", param="stop"
            )
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._sampling = sampling
        self._skipped_ids = tokenizer.special_token_ids if tokenizer and skip_special_tokens else frozenset()
        self._detokenizer = tokenizer and IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, continues=bool(prompt_token_ids)
        )
        self._matcher = StopMatcher(sampling.stop, include_stop=sampling.include_stop_str_in_output)
        self._held: deque[_Held] = deque()
        self._num_chars = 0  # of all tokens so far
        self._num_shown_chars = 0
        self._num_output_tokens = 0
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        #: Ids that came after the end of the answer.
        self.num_overrun_tokens = 0

    @property
    def is_finished(self) -> bool:
        return self._finish_reason is not None

    def process(self, delta: TokenDelta) -> TextDelta:
        """Call it for every delta, also after the end, so that overrun tokens are counted."""
        if self.is_finished:
            self.num_overrun_tokens += len(delta.token_ids)
            return TextDelta(num_output_tokens=self._num_output_tokens)
        text = self._accept_all(delta)
        if not self.is_finished and delta.finish_reason is not None:
            text += self._end(delta)
        ids, logprobs = self._release()
        return TextDelta(
            text=text,
            token_ids=ids,
            logprobs=logprobs if self._sampling.logprobs is not None else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            num_output_tokens=self._num_output_tokens,
            should_abort=self.is_finished and delta.finish_reason is None,
            prompt_logprobs=self._prompt_logprobs(delta),
        )

    def _accept_all(self, delta: TokenDelta) -> str:
        """Token by token, so that how they were cut into deltas cannot matter."""
        num_ids = len(delta.token_ids)
        logprobs = delta.logprobs if delta.logprobs is not None else (None,) * num_ids
        assert len(logprobs) == num_ids, f"{num_ids} ids, {len(logprobs)} logprobs"
        text = ""
        for i, (token_id, logprob) in enumerate(zip(delta.token_ids, logprobs, strict=True)):
            if self.is_finished:
                self.num_overrun_tokens += num_ids - i
                break
            is_end = delta.stop_token_id is not None and i == num_ids - 1
            text += self._accept(token_id, logprob, is_end=is_end)
        return text

    def _accept(self, token_id: int, logprob: TokenLogprob | None, *, is_end: bool) -> str:
        self._num_output_tokens += 1
        tokenizer = self._tokenizer
        is_text = tokenizer is not None and tokenizer.piece(token_id) is not None and token_id not in self._skipped_ids
        has_text = is_text and not is_end
        self._held.append(_Held(token_id, logprob, self._num_chars, has_text))
        return self._show(self._detokenizer.push(token_id)) if self._detokenizer and has_text else ""

    def _end(self, delta: TokenDelta) -> str:
        """The engine says that this is the end; bytes held back may still complete a stop string."""
        text = self._show(self._detokenizer.flush()) if self._detokenizer else ""
        if self.is_finished:
            return text
        self._finish_reason = delta.finish_reason
        if delta.stop_token_id in self._sampling.stop_token_ids:
            self._stop_reason = delta.stop_token_id
        rest = self._matcher.flush()
        self._num_shown_chars += len(rest)
        return text + rest

    def _show(self, text: str) -> str:
        """New text of the output -> the part of it that may be shown now."""
        self._num_chars += len(text)
        step = self._matcher.push(text, can_stop=self._num_output_tokens > self._sampling.min_tokens)
        self._num_shown_chars += len(step.text)
        if step.stop is not None:
            self._finish_reason, self._stop_reason = FinishReason.STOP, step.stop
        return step.text

    def _release(self) -> tuple[tuple[int, ...], tuple[TextLogprob, ...]]:
        """Ids and logprobs of the tokens that shown text has reached; all of them when the answer has ended."""
        ids: list[int] = []
        logprobs: list[TextLogprob] = []
        is_all = self.is_finished or self._tokenizer is None
        while self._held and (is_all or self._held[0].start < self._num_shown_chars):
            held = self._held.popleft()
            ids.append(held.token_id)
            if held.logprob is not None:
                is_hidden = not held.has_text or held.start >= self._num_shown_chars
                logprobs.append(describe(self._tokenizer, held.logprob, text_offset=held.start, is_hidden=is_hidden))
        return tuple(ids), tuple(logprobs)

    def _prompt_logprobs(self, delta: TokenDelta) -> tuple[TextLogprob, ...] | None:
        if delta.prompt_logprobs is None:
            return None
        return describe_prompt(self._tokenizer, self._prompt_token_ids, delta.prompt_logprobs)
