"""mHC in float32, written out; sums over the N streams are spelled as additions in stream order."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.mhc.api import HyperConnection


def mhc_pre(streams: Tensor, connection: HyperConnection) -> tuple[Tensor, Tensor, Tensor]:
    n, eps = connection.num_streams, connection.eps
    streams = streams.float()
    mixes = _mixes(streams, connection)
    scale, base = connection.scale, connection.base
    pre = invariant.sigmoid(mixes[:, :n] * scale[0] + base[:n]) + eps
    post = 2.0 * invariant.sigmoid(mixes[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    raw = (mixes[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n))
    return _weighted_sum(streams, pre), post, sinkhorn(raw, connection.sinkhorn_iters, eps)


def mhc_post(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    wide = streams.float()
    out = post.unsqueeze(-1) * y.float().unsqueeze(1)
    for j in range(wide.shape[1]):  # the sum runs over the FIRST index of comb
        out = out + comb[:, j, :, None] * wide[:, j, None, :]
    return out.to(streams.dtype)


def mhc_head(streams: Tensor, connection: HyperConnection) -> Tensor:
    streams = streams.float()
    mixes = _mixes(streams, connection)
    weights = invariant.sigmoid(mixes * connection.scale + connection.base) + connection.eps
    return _weighted_sum(streams, weights)


def sinkhorn(raw: Tensor, num_iters: int, eps: float) -> Tensor:
    """[T, N, N] -> nearly doubly stochastic: softmax of rows, then columns; then rows and columns in turn."""
    comb = torch.exp(raw - raw.amax(-1, keepdim=True))
    comb = comb / comb.sum(-1, keepdim=True) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(num_iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return comb


def _mixes(streams: Tensor, connection: HyperConnection) -> Tensor:
    """fn @ RMS(flatten X); the flattening is stream-major."""
    per_stream = invariant.mean_square(streams)  # [T, N, 1]
    mean_square = per_stream[:, 0]
    for i in range(1, streams.shape[1]):
        mean_square = mean_square + per_stream[:, i]
    normed = streams.flatten(1) * torch.rsqrt(mean_square / streams.shape[1] + connection.norm_eps)
    return invariant.matmul(normed, connection.fn)


def _weighted_sum(streams: Tensor, weights: Tensor) -> Tensor:
    out = streams[:, 0] * weights[:, 0, None]
    for i in range(1, streams.shape[1]):
        out = out + streams[:, i] * weights[:, i, None]
    return out
