"""mHC as batched products: the reference's maths with sums in another order, quick forwards and backwards (training).

Not responsible for: bits that do not depend on the batch (reference.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmill.kernels.mhc.api import HyperConnection


def mhc_pre(streams: Tensor, connection: HyperConnection) -> tuple[Tensor, Tensor, Tensor]:
    n, eps = connection.num_streams, connection.eps
    mixes = _mixes(streams, connection)
    scale, base = connection.scale, connection.base
    pre = torch.sigmoid(mixes[:, :n] * scale[0] + base[:n]) + eps
    post = 2.0 * torch.sigmoid(mixes[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    raw = (mixes[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n))
    return _weighted_sum(streams, pre), post, sinkhorn(raw, connection.sinkhorn_iters, eps)


def mhc_post(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return torch.baddbmm(post.unsqueeze(2) * y.unsqueeze(1), comb.transpose(1, 2), streams)


def mhc_head(streams: Tensor, connection: HyperConnection) -> Tensor:
    mixes = _mixes(streams, connection)
    return _weighted_sum(streams, torch.sigmoid(mixes * connection.scale + connection.base) + connection.eps)


def sinkhorn(raw: Tensor, num_iters: int, eps: float) -> Tensor:
    """[T, N, N] -> the same, with a backward pass of its own."""
    comb: Tensor = _Sinkhorn.apply(raw, num_iters, eps)
    return comb


class _Sinkhorn(torch.autograd.Function):
    """Works on [N, N, T], so that every sum runs over whole vectors of tokens."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, num_iters: int, eps: float) -> Tensor:
        z = raw.permute(1, 2, 0).contiguous()
        comb = torch.exp(z - z.amax(1, keepdim=True))
        soft = comb / comb.sum(1, keepdim=True)
        comb, results, totals = soft + eps, [], []
        for axis in _axes(num_iters):
            total = comb.sum(axis, keepdim=True).add_(eps)
            comb = comb / total
            results.append(comb)
            totals.append(total)
        ctx.num_iters = num_iters
        ctx.save_for_backward(soft, *results, *totals)
        return comb.permute(2, 0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        soft, *saved = ctx.saved_tensors
        axes = _axes(ctx.num_iters)
        results, totals = saved[: len(axes)], saved[len(axes) :]
        g = grad.permute(1, 2, 0).contiguous()
        for axis, result, total in zip(reversed(axes), reversed(results), reversed(totals), strict=True):
            g = (g - (g * result).sum(axis, keepdim=True)).div_(total)
        g = soft * (g - (g * soft).sum(1, keepdim=True))
        return g.permute(2, 0, 1), None, None


def _axes(num_iters: int) -> list[int]:
    """Columns first, then rows and columns in turn; it ends on columns."""
    return [0] + [1, 0] * (num_iters - 1)


def _mixes(streams: Tensor, connection: HyperConnection) -> Tensor:
    """fn @ RMS(flatten X): the product first, then the factor of the norm, which is one number per token."""
    flat = streams.flatten(1)
    factor = torch.rsqrt(flat.square().mean(-1, keepdim=True) + connection.norm_eps)
    return (flat @ connection.fn.t()) * factor


def _weighted_sum(streams: Tensor, weights: Tensor) -> Tensor:
    return torch.bmm(weights.unsqueeze(1), streams).squeeze(1)
