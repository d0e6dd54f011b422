"""One long sequence without the work of computing it: caches filled with plausible rows, then real decode steps.

Not responsible for: which contexts, figures beyond seconds and bytes (context.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tokenmill.bench.machine_peaks import step_clock
from tokenmill.core.cache_groups import CacheGroup
from tokenmill.models.batch import ForwardBatch, GroupTable
from tokenmill.models.deepseek_v4.caches import fill_synthetic
from tokenmill.models.deepseek_v4.model import V4Base


class LongSequence:
    """Caches for the longest of `contexts`; shorter ones use a part of the same blocks, in no order."""

    def __init__(self, model: V4Base, contexts: Sequence[int], num_steps: int, block_size: int, seed: int = 0) -> None:
        self._model: Any = model
        self.block_size = block_size
        self._num_steps = num_steps
        self.groups = model.cache_groups(block_size)
        self.num_blocks = blocks_needed(self.groups, contexts, num_steps, block_size)
        self.caches = model.allocate_caches(self.num_blocks, block_size)
        fill_synthetic(self.caches, model.config, model.formats, seed)
        generator = torch.Generator().manual_seed(seed)
        self._blocks = {name: torch.randperm(n, generator=generator) for name, n in self.num_blocks.items()}

    def decode(self, context: int) -> list[float]:
        """Seconds of each decode step, logits included; after the last one the sequence has `context` tokens."""
        first = context - self._num_steps
        return [self._step(position) for position in range(first, context)]

    @torch.inference_mode()
    def _step(self, position: int) -> float:
        batch = self._batch(position)
        clock = step_clock()
        began_s = clock()
        hidden = self._model.forward(batch, self.caches)
        self._model.commit(batch, self.caches, [1])
        logits = self._model.compute_logits(hidden)
        seconds = clock() - began_s
        assert bool(torch.isfinite(logits).all()), f"logits at position {position} are not finite"
        return seconds

    def _batch(self, position: int) -> ForwardBatch:
        return ForwardBatch(
            token_ids=torch.tensor([position % self._model.vocab_size]),
            positions=torch.tensor([position]),
            cu_seqlens=(0, 1),
            context_lens=(position,),
            draft_lens=(0,),
            block_size=self.block_size,
            tables={group.name: self._table(group, position) for group in self.groups},
        )

    def _table(self, group: CacheGroup, position: int) -> GroupTable:
        """Window groups start at the first block that this position needs, as they would after freeing the rest."""
        first, end = _span(group, position, self.block_size)
        return GroupTable(self._blocks[group.name][: end - first][None].contiguous(), torch.tensor([first]))

    def held_bytes(self, context: int) -> dict[str, int]:
        """By group, from the tensors: rows of `context` tokens that a next step may read; whole states."""
        return {group.name: self._held(group, context) for group in self.groups}

    def _held(self, group: CacheGroup, context: int) -> int:
        tensors = self.caches[group.name]
        if group.name.endswith("_state"):
            return sum(t[0].numel() * t.element_size() for t in tensors)
        tokens = context if group.window_tokens is None else min(context, group.window_tokens + 1)
        return sum(tokens * t.shape[1] // self.block_size * t.shape[2] * t.element_size() for t in tensors)

    def allocated_bytes(self, context: int) -> dict[str, int]:
        """By group: whole blocks around what `context` tokens hold."""
        bytes_of = {}
        for group in self.groups:
            first, end = _span(group, context - 1, self.block_size)
            bytes_of[group.name] = (end - first) * group.bytes_per_block
        return bytes_of


def blocks_needed(
    groups: Sequence[CacheGroup], contexts: Sequence[int], num_steps: int, block_size: int
) -> dict[str, int]:
    """Physical blocks by group for one sequence at any of the contexts, and during the steps that lead there."""
    positions = [p for context in contexts for p in range(context - num_steps, context)]
    spans = {group.name: [_span(group, p, block_size) for p in positions] for group in groups}
    return {name: max(end - first for first, end in found) for name, found in spans.items()}


def _span(group: CacheGroup, position: int, block_size: int) -> tuple[int, int]:
    """Logical blocks first..end that the step at `position` reads or writes."""
    return min(group.first_needed_block(position, block_size), position // block_size), position // block_size + 1
