"""Interpolated Kneser-Ney trigram: what the same tokens give without a network; the bar for the hard domain.

    python -m training.ngram --corpus build/corpus

R. Kneser, H. Ney, "Improved backing-off for M-gram language modeling", 1995, in the interpolated form of S. Chen and
J. Goodman, "An empirical study of smoothing techniques for language modeling", 1999, with one discount per order,
n1 / (n1 + 2 n2).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenmill.bench.quality_set import QualitySet
from tokenmill.text.tokenizer import Tokenizer

_END = 1


@dataclass(frozen=True, slots=True)
class _Order:
    """Sorted codes of the n-grams seen and their counts; per context, its total and how many words follow it."""

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    followers: np.ndarray
    discount: float

    @classmethod
    def of(cls, grams: np.ndarray, counts: np.ndarray, vocab_size: int) -> _Order:
        contexts, first, followers = np.unique(grams // vocab_size, return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, first)
        ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
        return cls(grams, counts, contexts, totals, followers, ones / (ones + 2 * twos) if ones else 0.5)

    def interpolate(self, grams: np.ndarray, lower: np.ndarray, vocab_size: int) -> np.ndarray:
        """Probabilities of words after contexts, `lower` being those of the next shorter contexts."""
        counts = _look_up(self.grams, self.counts, grams)
        context = grams // vocab_size
        totals = _look_up(self.contexts, self.totals, context)
        spread = _look_up(self.contexts, self.followers, context) * self.discount
        known = totals > 0
        safe = np.where(known, totals, 1)
        return np.where(known, (np.maximum(counts - self.discount, 0) + spread * lower) / safe, lower)


class KneserNey:
    def __init__(self, tokens: np.ndarray, vocab_size: int) -> None:
        self._v = vocab_size
        t = tokens.astype(np.int64)
        tri, tri_counts = np.unique((t[:-2] * vocab_size + t[1:-1]) * vocab_size + t[2:], return_counts=True)
        # A shorter n-gram counts once for each different word in front of it.
        bi, bi_counts = np.unique(tri % vocab_size**2, return_counts=True)
        uni, uni_counts = np.unique(bi % vocab_size, return_counts=True)
        self._orders = (_Order.of(bi, bi_counts, vocab_size), _Order.of(tri, tri_counts, vocab_size))
        self._unigram = np.full(vocab_size, 0.5)
        self._unigram[uni] += uni_counts
        self._unigram /= self._unigram.sum()

    def nats(self, tokens: np.ndarray) -> np.ndarray:
        """Of every token from the third on."""
        t = tokens.astype(np.int64)
        bi = t[1:-1] * self._v + t[2:]
        lower = self._orders[0].interpolate(bi, self._unigram[t[2:]], self._v)
        return -np.log(self._orders[1].interpolate(t[:-2] * self._v**2 + bi, lower, self._v))


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """values at the place of `wanted` among sorted keys, 0 where it is not."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def nats_of_texts(corpus: Path, domain: str, texts: Sequence[Sequence[int]]) -> float:
    """Mean over every token but the first of each text, after training on the domain's training tokens."""
    vocab_size = json.loads((corpus / "corpus.json").read_text("utf-8"))["vocab_size"]
    model = KneserNey(np.fromfile(corpus / f"{domain}.train.u16", np.uint16), vocab_size)
    # In the training stream an end token stands before every begin token.
    return float(np.concatenate([model.nats(np.array([_END, *text])) for text in texts]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    args = parser.parse_args()
    questions = QualitySet.load(Tokenizer.load(args.corpus / "tokenizer"))
    domain = questions.hard_domain
    nats = nats_of_texts(args.corpus, domain, questions.texts[domain])
    print(json.dumps({"domain": domain, "nats_per_token": round(nats, 4), "perplexity": round(math.exp(nats), 3)}))


if __name__ == "__main__":
    main()
