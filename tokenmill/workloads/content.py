"""Prompt content as segments: (key, length) pairs that stand for the same tokens everywhere. Pure data and arithmetic.

A prompt is a tuple of segments. Two segments with one key hold the same tokens, and a shorter one is the front of a
longer one, so prefix sharing can be read off the segments without making a token. A segment with `reply_turn` stands
for the answer of an earlier turn of the same session: use what the server really answered, or the filler.
Not responsible for: which segments a turn has (sessions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xxhash

from tokenmill.workloads.words import WORDS

#: ids below are control tokens in the vocabularies of the Llama family
FIRST_ID = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """
    key         which tokens; it holds the seed and the run, so no other run shares it by accident
    num_tokens  how many of them
    reply_turn  None: synthetic; else the answer of this turn of the session, `num_tokens` long as asked
    """

    key: str
    num_tokens: int
    reply_turn: int | None = None


def num_tokens(segments: Sequence[Segment]) -> int:
    return sum(segment.num_tokens for segment in segments)


def token_ids(
    segments: Sequence[Segment], vocab_size: int, replies: Mapping[int, Sequence[int]] | None = None
) -> list[int]:
    """The ids of a prompt in [FIRST_ID, vocab_size).

    replies  turn index -> ids that the server answered with; filler of the asked length stands in for missing ones
    """
    ids: list[int] = []
    for segment in segments:
        reply = None if segment.reply_turn is None or replies is None else replies.get(segment.reply_turn)
        ids += _ids(segment.key, segment.num_tokens, vocab_size) if reply is None else reply
    return ids


def text(segments: Sequence[Segment], words_per_token: float = 1.0) -> str:
    """Everyday words, about `num_tokens` tokens per segment; `words_per_token` is measured at the server."""
    parts = (_words(s.key, max(1, round(s.num_tokens * words_per_token))) for s in segments if s.num_tokens)
    return " ".join(parts)


@lru_cache(maxsize=256)
def _ids(key: str, count: int, vocab_size: int) -> list[int]:
    """Callers copy (`+=`), never change."""
    return _rng(key).integers(FIRST_ID, vocab_size, size=count).tolist()


@lru_cache(maxsize=256)
def _words(key: str, count: int) -> str:
    return " ".join(WORDS[index] for index in _rng(key).integers(0, len(WORDS), size=count))


def _rng(key: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(xxhash.xxh3_64_intdigest(key.encode())))
