"""Drive a model without an engine: trivially contiguous block tables, any way of cutting the tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenmill.models.base import Caches, Model
from tokenmill.models.batch import ForwardBatch, GroupTable


class Driver:
    """Holds caches for `num_seqs` sequences of at most `max_len` tokens; sequence b owns every num_seqs-th block."""

    def __init__(self, model: Model, *, num_seqs: int, max_len: int, block_size: int = 16) -> None:
        self.model, self.block_size = model, block_size
        self.blocks_per_seq = -(-max_len // block_size)
        total = self.blocks_per_seq * num_seqs
        self.tables = torch.randperm(total, generator=torch.Generator().manual_seed(1)).view(num_seqs, -1)
        self.groups = [group.name for group in model.cache_groups(block_size)]
        self.caches: Caches = model.allocate_caches(dict.fromkeys(self.groups, total), block_size)
        self.lens = [0] * num_seqs

    @torch.inference_mode()
    def step(self, new_tokens: dict[int, Sequence[int]]) -> Tensor:
        """new_tokens: sequence -> ids. Returns the logits of all rows, in the order given."""
        batch = self.batch(new_tokens)
        hidden = self.model.forward(batch, self.caches)
        self.model.commit(batch, self.caches, [len(ids) for ids in new_tokens.values()])
        for b, ids in new_tokens.items():
            self.lens[b] += len(ids)
        return self.model.compute_logits(hidden)

    def batch(self, new_tokens: dict[int, Sequence[int]]) -> ForwardBatch:
        seqs, lens = list(new_tokens), [len(ids) for ids in new_tokens.values()]
        starts = [self.lens[b] for b in seqs]
        table = GroupTable(self.tables[seqs], torch.zeros(len(seqs), dtype=torch.int64))
        return ForwardBatch(
            token_ids=torch.tensor([i for ids in new_tokens.values() for i in ids], dtype=torch.int64),
            positions=torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lens, strict=True)]),
            cu_seqlens=(0, *torch.tensor(lens).cumsum(0).tolist()),
            context_lens=tuple(starts),
            draft_lens=(0,) * len(seqs),
            block_size=self.block_size,
            tables=dict.fromkeys(self.groups, table),
        )
