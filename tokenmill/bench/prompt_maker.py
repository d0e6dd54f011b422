"""Turns as prompts that a server takes: ids, text or chat messages, with the answers it really gave.

Not responsible for: what a turn holds (workloads), sending.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tokenmill.bench.target import Prompt
from tokenmill.workloads import content
from tokenmill.workloads.content import Segment
from tokenmill.workloads.request_record import RequestRecord
from tokenmill.workloads.sessions import Turn

_PROBE_WORDS = (32, 256)


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """
    vocab_size       prompts are ids below it; None: text
    is_chat          text becomes messages: what is not an answer is the user's
    words_per_token  measured at the server, as is num_overhead: tokens that it adds to every prompt
    """

    vocab_size: int | None = None
    is_chat: bool = False
    words_per_token: float = 1.0
    num_overhead: int = 0

    def prompt(self, turn: Turn, replies: Mapping[int, str]) -> Prompt:
        """Ids keep filler where an answer stands, since servers send text: only its length is right."""
        if self.vocab_size is not None:
            return content.token_ids(turn.prompt, self.vocab_size)
        messages = self._messages(turn.prompt, replies)
        if self.is_chat:
            return messages
        return " ".join(message["content"] for message in messages)

    def _messages(self, prompt: Sequence[Segment], replies: Mapping[int, str]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        for index, segment in enumerate(prompt):
            is_reply = segment.reply_turn is not None
            text = replies.get(segment.reply_turn) if segment.reply_turn is not None else None
            if text is None:
                num_tokens = segment.num_tokens - (self.num_overhead if index == 0 else 0)
                text = content.text([replace(segment, num_tokens=max(1, num_tokens))], self.words_per_token)
            role = "assistant" if is_reply else "user"
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += " " + text
            else:
                messages.append({"role": role, "content": text})
        return messages


async def calibrated_maker(
    maker: PromptMaker, key: str, probe: Callable[[Prompt], Awaitable[RequestRecord]]
) -> PromptMaker:
    """For text, the words per token and the overhead are found by asking the server to count two probes."""
    if maker.vocab_size is not None:
        return maker
    counts = []
    for words in _PROBE_WORDS:
        record = await probe(content.text([Segment(f"{key}/probe{words}", words)]))
        if not record.is_ok or not record.has_usage:
            return maker
        counts.append((words, record.num_prompt_tokens))
    (few_words, few_tokens), (many_words, many_tokens) = counts
    if many_tokens <= few_tokens:
        return maker
    words_per_token = (many_words - few_words) / (many_tokens - few_tokens)
    overhead = max(0, round(few_tokens - few_words / words_per_token))
    return replace(maker, words_per_token=words_per_token, num_overhead=overhead)
