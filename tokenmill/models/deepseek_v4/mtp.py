"""The multi-token-prediction block: one more V4 block that guesses the token after the next.

It takes the trunk's streams BEFORE they are collapsed, [N, C] per token; collapsing early ruins its acceptance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels.select import Kernels
from tokenmill.models.deepseek_v4.block import REFERENCE_OPS, Block, BlockOps, Collapse
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.step import Rotation
from tokenmill.models.deepseek_v4.step_index import WindowIndex
from tokenmill.models.deepseek_v4.weights import MtpWeights


class Mtp:
    def __init__(
        self,
        config: DeepseekV4Config,
        weights: MtpWeights,
        kernels: Kernels,
        formats: CacheFormats,
        dtype: torch.dtype,
        ops: BlockOps = REFERENCE_OPS,
    ) -> None:
        self._config, self._kernels, self._dtype = config, kernels, dtype
        self._e_proj, self._h_proj = kernels.linear(weights.e_proj), kernels.linear(weights.h_proj)
        self._enorm, self._hnorm = weights.enorm, weights.hnorm
        self.block = Block(config, weights.block, kernels, formats, dtype, ops)
        self.collapse = Collapse(config, weights.collapse, kernels, ops)

    def forward(
        self,
        streams: Tensor,
        embedded: Tensor,
        next_ids: Tensor,
        rotation: Rotation,
        window: WindowIndex,
        cache: Tensor,
    ) -> Tensor:
        """streams [T, N, C] of positions t, embedded [T, C] and next_ids [T] of the tokens at t + 1 -> streams.

        rotation is that of sliding layers at t. The rows of `cache` at these positions are written.
        """

        def attend(x: Tensor) -> Tensor:
            attention = self.block.attention
            queries = attention.project(x, rotation)
            attention.write_window(queries, window, cache)
            return attention.attend(queries, rotation, window, cache, None)

        return self.block(self.combine(streams, embedded), next_ids, attend)

    def combine(self, streams: Tensor, embedded: Tensor) -> Tensor:
        """What the block takes: both parts normalised and projected, the token's added to every stream."""
        eps = self._config.rms_norm_eps
        e = self._e_proj(self._kernels.rms_norm(embedded.float(), self._enorm, eps).to(self._dtype)).float()
        h = self._kernels.rms_norm(streams, self._hnorm, eps).to(self._dtype)
        h = self._h_proj(h.flatten(0, 1)).float().view_as(streams)
        return h + e.unsqueeze(1)
