"""Drive a model without an engine: block tables by hand, stale memory poisoned, any cut of the tokens into steps.

Blocks are given out in a scrambled order, and every block is filled with NaN (0xFF bytes where packed) when it is
given out and when it is freed, so that reading anything that was not written shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tokenmill.models.batch import ForwardBatch, GroupTable


@dataclass
class Seq:
    """One sequence: its tokens, how many are computed, and per group (first logical block, physical blocks)."""

    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    first: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, list[int]] = field(default_factory=dict)


class Harness:
    """
    keeps_windows  do not free the blocks of window groups, so that a prefix hit is possible at every boundary
    """

    def __init__(
        self, model: Any, *, num_blocks: int = 64, block_size: int = 128, keeps_windows: bool = False, seed: int = 0
    ) -> None:
        self.model = model
        self.block_size = block_size
        self.groups = model.cache_groups(block_size)
        self.caches = model.allocate_caches({g.name: num_blocks for g in self.groups}, block_size)
        self._keeps_windows = keeps_windows
        order = random.Random(seed)
        self.free = {g.name: order.sample(range(num_blocks), num_blocks) for g in self.groups}
        self._refs: dict[tuple[str, int], int] = {}
        for group in self.groups:
            for block in range(num_blocks):
                self._poison(group.name, block)

    def _poison(self, name: str, block: int) -> None:
        for cache in self.caches[name]:
            cache[block].fill_(torch.nan if cache.is_floating_point() else 0xFF)

    def start(self) -> Seq:
        return Seq(first={g.name: 0 for g in self.groups}, blocks={g.name: [] for g in self.groups})

    def fork(self, seq: Seq, num_tokens: int) -> Seq:
        """A new sequence with a prefix hit at `num_tokens`, a block boundary that `seq` has computed."""
        assert num_tokens % self.block_size == 0 and num_tokens <= seq.num_computed
        end, new = num_tokens // self.block_size, self.start()
        new.token_ids, new.num_computed = seq.token_ids[:num_tokens], num_tokens
        for group in self.groups:
            first = group.first_needed_block(num_tokens, self.block_size)
            if not group.is_required:
                first = end  # optional groups miss
            shift = seq.first[group.name]
            assert first >= shift or first == end, f"{group.name}: block {first} is gone"
            new.first[group.name] = first
            new.blocks[group.name] = list(seq.blocks[group.name][first - shift : end - shift])
            for block in new.blocks[group.name]:
                self._refs[group.name, block] += 1
        return new

    def clone(self, seq: Seq) -> Seq:
        """An independent copy at the same length, block by block."""
        new = Seq(list(seq.token_ids), seq.num_computed, dict(seq.first), {name: [] for name in seq.blocks})
        for name, blocks in seq.blocks.items():
            for block in blocks:
                mine = self._take(name)
                new.blocks[name].append(mine)
                for cache in self.caches[name]:
                    cache[mine] = cache[block]
        return new

    def rebuild_fork(self, seq: Seq, num_tokens: int, resume: int) -> Seq:
        """A hit whose window groups are gone: computing starts again at `resume`, entries below num_tokens stay."""
        new = self.fork(seq, num_tokens)
        new.token_ids, new.num_computed = seq.token_ids[:resume], resume
        for group in self.groups:
            if group.window_tokens is not None:
                self._release(group.name, new.blocks[group.name])
                new.first[group.name], new.blocks[group.name] = resume // self.block_size, []
        return new

    def finish(self, seq: Seq) -> None:
        for name, blocks in seq.blocks.items():
            self._release(name, blocks)
        seq.blocks = {}

    def _release(self, name: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._refs[name, block] -= 1
            if self._refs[name, block] == 0:
                self._poison(name, block)
                self.free[name].append(block)

    def _reserve(self, seq: Seq, num_tokens: int) -> None:
        end = -(-num_tokens // self.block_size)
        for name, blocks in seq.blocks.items():
            while seq.first[name] + len(blocks) < end:
                blocks.append(self._take(name))

    def _take(self, name: str) -> int:
        block = self.free[name].pop(0)
        self._refs[name, block] = 1
        return block

    def _free_windows(self, seq: Seq) -> None:
        if self._keeps_windows:
            return
        for group in self.groups:
            if group.window_tokens is None:
                continue
            keep = group.first_needed_block(seq.num_computed, self.block_size)
            dead = seq.blocks[group.name][: max(0, keep - seq.first[group.name])]
            self._release(group.name, dead)
            del seq.blocks[group.name][: len(dead)]
            seq.first[group.name] += len(dead)

    # -- steps --

    def batch(
        self, items: Sequence[tuple[Seq, Sequence[int]]], drafts: Sequence[int] = (), protected: Sequence[int] = ()
    ) -> ForwardBatch:
        """items: (sequence, new token ids); drafts: how many of each one's ids are drafts."""
        ids, positions, cu = [], [], [0]
        for seq, new in items:
            self._reserve(seq, seq.num_computed + len(new))
            ids += list(new)
            positions += range(seq.num_computed, seq.num_computed + len(new))
            cu.append(len(ids))
        return ForwardBatch(
            token_ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            cu_seqlens=tuple(cu),
            context_lens=tuple(seq.num_computed for seq, _ in items),
            draft_lens=tuple(drafts) or (0,) * len(items),
            block_size=self.block_size,
            tables={g.name: self._table(g.name, [seq for seq, _ in items]) for g in self.groups},
            protected_lens=tuple(protected),
        )

    def _table(self, name: str, seqs: Sequence[Seq]) -> GroupTable:
        width = max(1, *(len(s.blocks[name]) for s in seqs))
        rows = [s.blocks[name] + [0] * (width - len(s.blocks[name])) for s in seqs]
        return GroupTable(torch.tensor(rows), torch.tensor([s.first[name] for s in seqs]))

    @torch.inference_mode()
    def step(
        self,
        items: Sequence[tuple[Seq, Sequence[int]]],
        drafts: Sequence[int] = (),
        accepted: Sequence[int] | None = None,
        protected: Sequence[int] = (),
    ) -> list[Tensor]:
        """Forward and commit; logits of all rows per sequence. accepted: rows that stay (default all)."""
        batch = self.batch(items, drafts, protected)
        hidden = self.model.forward(batch, self.caches)
        stay = [len(new) for _, new in items] if accepted is None else list(accepted)
        self.model.commit(batch, self.caches, stay)
        for (seq, new), n in zip(items, stay, strict=True):
            seq.token_ids += list(new[:n])
            seq.num_computed += n
            self._free_windows(seq)
        logits = self.model.compute_logits(hidden)
        return [logits[a:b] for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)]

    def prefill(self, seq: Seq, ids: Sequence[int], chunk: int | None = None) -> Tensor:
        """Logits of every position, computed in chunks."""
        size = chunk or max(1, len(ids))
        return torch.cat([self.step([(seq, list(ids[i : i + size]))])[0] for i in range(0, len(ids), size)])

    def greedy(self, seqs: Sequence[Seq], last_logits: Sequence[Tensor], num_tokens: int) -> list[list[int]]:
        """Greedy continuation of all sequences together, one token per step."""
        out: list[list[int]] = [[] for _ in seqs]
        rows = [logits.view(-1, logits.shape[-1])[-1] for logits in last_logits]
        for _ in range(num_tokens):
            chosen = [int(row.argmax()) for row in rows]
            for ids, token in zip(out, chosen, strict=True):
                ids.append(token)
            steps = self.step([(seq, [token]) for seq, token in zip(seqs, chosen, strict=True)])
            rows = [logits[-1] for logits in steps]
        return out

    def valid_bytes(self, seq: Seq) -> dict[str, list[Tensor]]:
        """Everything of `seq` that a later step may read, copied: whole state blocks, rows and entries in use."""
        n, out = seq.num_computed, {}
        for group in self.groups:
            first, blocks = seq.first[group.name], seq.blocks[group.name]
            if group.name.endswith("_state"):
                last = (n - 1) // self.block_size - first
                out[group.name] = [c[blocks[last]].clone() for c in self.caches[group.name]] if last >= 0 else []
                continue
            rows = []
            for cache in self.caches[group.name]:
                ratio = self.block_size // cache.shape[1]
                used = cache[blocks].flatten(0, 1)[: n // ratio - first * cache.shape[1]]
                begin = 0
                if group.window_tokens is not None:
                    begin = max(0, n - group.window_tokens - first * self.block_size)
                rows.append(used[begin:].clone())
            out[group.name] = rows
        return out
