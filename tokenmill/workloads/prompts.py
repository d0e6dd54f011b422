"""Synthetic prompts: unique, of a given length, the same for the same seed. Not responsible for: sending them.

Every prompt begins with words of its own, so that no prefix cache helps unless a shared prefix is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tokenmill.workloads.words import WORDS


def token_prompts(
    num_prompts: int, isl: int, *, vocab_size: int, seed: int, num_shared: int = 0, first_id: int = 3
) -> list[list[int]]:
    """`num_prompts` lists of `isl` token ids in [first_id, vocab_size); the first `num_shared` ids are common.

    first_id  ids below are control tokens in the vocabularies of the Llama family
    """
    assert 0 <= num_shared <= isl, f"{num_shared} shared of {isl} tokens"
    rng = random.Random(seed)
    shared = _ids(rng, num_shared, first_id, vocab_size)
    return [shared + _ids(rng, isl - num_shared, first_id, vocab_size) for _ in range(num_prompts)]


def _ids(rng: random.Random, count: int, first_id: int, vocab_size: int) -> list[int]:
    return [rng.randrange(first_id, vocab_size) for _ in range(count)]


def text_prompts(num_prompts: int, num_words: int, *, seed: int, num_shared: int = 0) -> list[str]:
    """`num_prompts` texts of `num_words` everyday words, about one token each; the first `num_shared` are common."""
    assert 0 <= num_shared <= num_words, f"{num_shared} shared of {num_words} words"
    rng = random.Random(seed)
    shared = rng.choices(WORDS, k=num_shared)
    return [" ".join(shared + rng.choices(WORDS, k=num_words - num_shared)) for _ in range(num_prompts)]


def words_for_tokens(isl: int, probes: Sequence[tuple[int, int]]) -> int:
    """How many words give a prompt of `isl` tokens, from probes of (words sent, prompt tokens counted).

    Two probes fix the line tokens = overhead + slope x words: a chat template adds a constant, a tokenizer a factor.
    """
    (few_words, few_tokens), (many_words, many_tokens) = probes
    assert many_words > few_words, f"probes {probes} do not span a range"
    slope = (many_tokens - few_tokens) / (many_words - few_words) or 1.0
    return max(1, round((isl - few_tokens) / slope) + few_words)
