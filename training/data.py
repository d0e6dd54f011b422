"""Batches from the token files: row r of step s is a function of the seed alone, so training resumes where it was.

Each domain is cut into rows; an epoch visits its rows in a shuffled order and starts from another offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.corpus.domains import DOMAINS


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps `begin` to `end` use rows of so many tokens."""

    begin: int
    end: int
    length: int
    rows_per_step: int


class Corpus:
    """Shares of domains are kept over any stretch of rows: row i belongs to the domain that is most behind."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._shares = np.array([domain.share for domain in DOMAINS])
        self._tokens = [np.memmap(folder / f"{domain.name}.train.u16", np.uint16, "r") for domain in DOMAINS]
        self._orders: dict[tuple[int, int, int], np.ndarray] = {}

    def batch(self, step: int, phase: Phase, rank: int, num_ranks: int) -> Tensor:
        """[rows, length + 2]: this rank's part of the step's rows."""
        first = (step - phase.begin) * phase.rows_per_step
        rows = [self._row(first + i, phase) for i in range(rank, phase.rows_per_step, num_ranks)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _row(self, index: int, phase: Phase) -> np.ndarray:
        domain, place = self._domain_of(index)
        tokens, length = self._tokens[domain], phase.length
        num_rows = (len(tokens) - 2) // length - 1
        epoch, within = divmod(place, num_rows)
        rng_key = (domain, epoch, length)
        if rng_key not in self._orders:
            rng = np.random.default_rng((self._seed, *rng_key))
            self._orders[rng_key] = np.append(rng.permutation(num_rows), rng.integers(length))
        order = self._orders[rng_key]
        start = int(order[within]) * length + int(order[-1])
        return np.asarray(tokens[start : start + length + 2])

    def _domain_of(self, index: int) -> tuple[int, int]:
        """Domain of row `index` and how many rows of it came before: a low-discrepancy draw, then counted."""
        cumulative = np.cumsum(self._shares)
        draws = (np.arange(index + 1) * 0.6180339887498949 + 0.5) % 1.0
        domains = np.minimum(np.searchsorted(cumulative, draws, side="right"), len(cumulative) - 1)
        domain = int(domains[index])
        return domain, int((domains[:index] == domain).sum())


def held_out(folder: Path, domain: str) -> Tensor:
    tokens = np.fromfile(folder / f"{domain}.held_out.u16", np.uint16)
    return torch.from_numpy(tokens.astype(np.int64))
