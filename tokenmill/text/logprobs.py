"""Log-probabilities of ids, with the text and bytes of each token, as clients want them. Not responsible for when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.core.request import TokenLogprob
from tokenmill.text.detokenizer import IncrementalDetokenizer
from tokenmill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have been chosen."""

    token_id: int
    logprob: float
    token: str
    bytes: bytes


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """One token of an output or a prompt.

    token        the token alone, for people: unfinished bytes as U+FFFD, special tokens by name
    bytes        what it stands for; the bytes of all tokens that are not hidden, joined, are the text's bytes (where
                 the text was cut at a stop string, the last of them may reach beyond the cut)
    text_offset  characters of the text before it
    is_hidden    nothing of it is in the text: an end token, a skipped special token, part of a stop string
    top          alternatives, best first
    """

    token_id: int
    logprob: float
    token: str
    bytes: bytes
    text_offset: int
    is_hidden: bool = False
    top: tuple[Alternative, ...] = ()


def describe(
    tokenizer: Tokenizer | None, entry: TokenLogprob, *, text_offset: int, is_hidden: bool = False
) -> TextLogprob:
    """Without a tokenizer tokens are called `token_id:N` and have no bytes."""
    top = tuple(Alternative(i, logprob, *_text_of(tokenizer, i)) for i, logprob in entry.top)
    token, data = _text_of(tokenizer, entry.token_id)
    return TextLogprob(entry.token_id, entry.logprob, token, data, text_offset, is_hidden, top)


def describe_prompt(
    tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], entries: Sequence[TokenLogprob]
) -> tuple[TextLogprob, ...]:
    """`entries` of the prompt tokens from the second on; offsets count from the start of the prompt's text."""
    assert len(entries) == len(prompt_token_ids) - 1, f"{len(entries)} entries, {len(prompt_token_ids)} prompt tokens"
    stream = None if tokenizer is None else IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    described, offset = [], 0
    for token_id, entry in zip(prompt_token_ids, (None, *entries), strict=True):
        if entry is not None:
            described.append(describe(tokenizer, entry, text_offset=offset))
        offset += 0 if stream is None else len(stream.push(token_id))
    return tuple(described)


def _text_of(tokenizer: Tokenizer | None, token_id: int) -> tuple[str, bytes]:
    if tokenizer is None:
        return f"token_id:{token_id}", b""
    return tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)
