"""Manifold-constrained hyper-connections (mHC): N residual streams, mixed by a doubly stochastic matrix.

Names follow the checkpoint: fn [(2 + N) N, N C], base [(2 + N) N], scale [3], in the order pre, post, comb; the
head has fn [N, N C], base [N], scale [1]. Specification: DeepSeek V4 report section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tokenmill.core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """Parameters of one connection, float32; `eps` is hc_eps, `norm_eps` that of the RMS norm of the streams."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    num_streams: int
    sinkhorn_iters: int
    eps: float
    norm_eps: float

    def __post_init__(self) -> None:
        """The shape contract is checked here, once, for every kernel: no width runs that was not meant to."""
        n = self.num_streams
        num_mixes = (2 + n) * n if self.scale.shape == (3,) else n
        if self.fn.shape[0] != num_mixes or self.fn.shape[1] % n or self.base.shape != (num_mixes,):
            raise CheckpointError(
                f"hyper-connection with fn {tuple(self.fn.shape)}, base {tuple(self.base.shape)}, scale "
                f"{tuple(self.scale.shape)} is not possible for {n} streams: fn is [{num_mixes}, {n} x hidden]"
            )


class MhcPre(Protocol):
    def __call__(self, streams: Tensor, connection: HyperConnection) -> tuple[Tensor, Tensor, Tensor]:
        """streams [T, N, C] -> input of the block u [T, C], post [T, N], comb [T, N, N]; all float32."""
        ...


class MhcPost(Protocol):
    def __call__(self, streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """X'[k] = post[k] y + sum_j comb[j, k] X[j]; y [T, C] is the block's output. -> new streams [T, N, C]."""
        ...


class MhcHead(Protocol):
    def __call__(self, streams: Tensor, connection: HyperConnection) -> Tensor:
        """streams [T, N, C] -> their weighted sum [T, C] float32; no Sinkhorn, no division."""
        ...
