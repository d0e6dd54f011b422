"""Build paged batches for attention tests, and the obvious answer to compare with."""

import torch

from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch, cache_shape


class PagedKeys:
    """Whole keys, values and queries of B sequences, and a cache in which their blocks lie in random order.

    Everything of position p of sequence b is fixed from the start; a step merely takes some rows of it.
    """

    def __init__(self, lens, spec: AttentionSpec, *, block_size=16, seed=0, dtype=torch.float32, num_spare_blocks=3):
        generator = torch.Generator().manual_seed(seed)
        self.spec, self.block_size, self.dtype = spec, block_size, dtype
        longest = max(lens)
        shape = len(lens), longest
        self.q = torch.randn(*shape, spec.num_heads, spec.head_dim, generator=generator).to(dtype)
        self.k = torch.randn(*shape, spec.num_kv_heads, spec.head_dim, generator=generator).to(dtype)
        self.v = torch.randn(*shape, spec.num_kv_heads, spec.head_dim, generator=generator).to(dtype)
        width = -(-longest // block_size)
        num_blocks = len(lens) * width + num_spare_blocks
        self.table = torch.randperm(num_blocks, generator=generator)[: len(lens) * width].view(len(lens), width)
        self.cache = torch.zeros(cache_shape(num_blocks, block_size, spec), dtype=dtype)
        self.done = [0] * len(lens)

    def batch(self, step: dict[int, int], *, first_block=None, protected=None) -> PagedBatch:
        """step: sequence -> rows to compute now."""
        seqs = list(step)
        cu_seqlens = [0]
        for b in seqs:
            cu_seqlens.append(cu_seqlens[-1] + step[b])
        first = torch.tensor([(first_block or {}).get(b, 0) for b in seqs])
        width = max(-(-(self.done[b] + step[b]) // self.block_size) for b in seqs)
        ids = [self.table[b, f:width].tolist() for b, f in zip(seqs, first.tolist(), strict=True)]
        padded = torch.tensor([row + [0] * (width - len(row)) for row in ids], dtype=torch.int64).view(len(seqs), -1)
        return PagedBatch(
            tuple(cu_seqlens),
            tuple(self.done[b] for b in seqs),
            padded,
            first,
            self.block_size,
            tuple((protected or {}).get(b, 0) for b in seqs) if protected else (),
        )

    def run(self, kernel, step: dict[int, int], *, sinks=None, **options) -> dict[int, torch.Tensor]:
        """One step; -> rows of output by sequence."""
        batch = self.batch(step, **options)
        parts = {name: self._rows(getattr(self, name), step) for name in "qkv"}
        plan = kernel.plan(batch, self.spec, self.dtype)
        out = kernel.attend(parts["q"], parts["k"], parts["v"], self.cache, plan, sinks)
        for b, n in step.items():
            self.done[b] += n
        return dict(zip(step, out.split(list(step.values())), strict=True))

    def _rows(self, x, step):
        return torch.cat([x[b, self.done[b] : self.done[b] + n] for b, n in step.items()])

    def answer(self, b: int, length: int, sinks=None) -> torch.Tensor:
        """[length, H, D] in float64: dense causal attention, written out."""
        spec, g = self.spec, self.spec.group_size
        q = self.q[b, :length].double()
        k, v = (x[b, :length].double().repeat_interleave(g, dim=1) for x in (self.k, self.v))
        scores = torch.einsum("thd,shd->hts", q, k) * spec.scale
        distance = torch.arange(length).view(-1, 1) - torch.arange(length)
        hidden = distance < 0
        if spec.window is not None:
            hidden |= distance >= spec.window
        scores.masked_fill_(hidden, -torch.inf)
        if sinks is not None:
            column = sinks.double().view(-1, 1, 1).expand(-1, length, 1)
            scores = torch.cat((scores, column), dim=-1)
        weights = scores.softmax(-1)[..., :length]
        return torch.einsum("hts,shd->thd", weights, v)
