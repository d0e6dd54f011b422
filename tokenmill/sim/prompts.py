"""From a turn's segments to a request's token ids and block hashes, at a cost per block, not per token.

Prompts that nobody continues need no tokens of their own: blocks that lie in the same segments at the same places get
the same hash, and all prompts of a length share one list of ids. Turns of a conversation carry real ids, answers
included, so that their hits are those of real engines. Not responsible for: which turns there are (workloads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import xxhash

from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.model_card import ModelCard
from tokenmill.workloads.content import FIRST_ID, Segment, num_tokens, token_ids

_ENCODE = msgspec.msgpack.Encoder().encode


@lru_cache(maxsize=4096)
def same_ids(count: int) -> list[int]:
    """Never changed by anybody: engines copy the prompt."""
    return [FIRST_ID] * count


class PromptMaker:
    """For the workers of one model."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._hasher = BlockHasher(card.block_size, card.weights_version, algorithm=card.hash_algorithm)
        self._root = self._hasher.root

    def hash_blocks(self, ids: Sequence[int]) -> list[bytes]:
        return self._hasher.hash_blocks(ids)

    def real(self, prompt: Sequence[Segment], replies: Mapping[int, Sequence[int]]) -> tuple[list[int], list[bytes]]:
        """Token ids as a real client would send them; hashes are left to the engine."""
        return token_ids(prompt, self._card.vocab_size, replies), []

    def abstract(self, prompt: Sequence[Segment]) -> tuple[list[int], list[bytes]]:
        """The shared ids of its length, and hashes by place in the segments."""
        count, size = num_tokens(prompt), self._card.block_size
        hashes: list[bytes] = []
        parent, digest = self._root, xxhash.xxh3_128_digest
        spans = iter(_spans(prompt))
        start, end, key = next(spans, (0, 0, ""))
        for index in range(count // size):
            low, high = index * size, (index + 1) * size
            if start <= low and high < end:  # within one segment: most are
                parent = digest(parent + _ENCODE([(key, low - start, high - start)]))
                hashes.append(parent)
                continue
            parts = []
            while True:
                parts.append((key, max(low, start) - start, min(high, end) - start))
                if end >= high:
                    break
                start, end, key = next(spans)
            parent = digest(parent + _ENCODE(parts))
            hashes.append(parent)
        return same_ids(count), hashes


def _spans(prompt: Sequence[Segment]) -> list[tuple[int, int, str]]:
    """(first token, end, key) of each segment in the prompt."""
    spans, start = [], 0
    for segment in prompt:
        spans.append((start, start + segment.num_tokens, segment.key))
        start += segment.num_tokens
    return spans
