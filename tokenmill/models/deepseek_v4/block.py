"""One V4 block: hyper-connection, attention, hyper-connection, mixture of experts; and the collapse at the end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokenmill.kernels.mhc.api import HyperConnection
from tokenmill.kernels.mhc.reference import mhc_head, mhc_post, mhc_pre
from tokenmill.kernels.moe.reference import experts, hash_router, router
from tokenmill.kernels.select import Kernels
from tokenmill.models.deepseek_v4.attention import Attention
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.weights import BlockWeights, CollapseWeights, ConnectionWeights, MoEWeights

#: The attention of a block as the caller wires it to caches: normalised input [T, C] -> output [T, C].
AttentionCall = Callable[[Tensor], Tensor]


class MoE:
    def __init__(self, config: DeepseekV4Config, weights: MoEWeights, kernels: Kernels, dtype: torch.dtype) -> None:
        self._config, self._kernels, self._dtype = config, kernels, dtype
        self._gate, self._bias, self._table = weights.gate, weights.bias, weights.table
        self._w13, self._w2 = weights.w13, weights.w2
        self._shared_w13 = kernels.linear(weights.shared_w13)
        self._shared_w2 = kernels.linear(weights.shared_w2)

    def __call__(self, x: Tensor, token_ids: Tensor) -> Tensor:
        """x [T, C] float32 -> [T, C] float32; the ids are needed in hash layers only."""
        config = self._config
        if self._table is not None:
            routing = hash_router(x, self._gate, self._table, token_ids, config.routed_scaling_factor)
        else:
            assert self._bias is not None
            routing = router(x, self._gate, self._bias, config.num_experts_per_tok, config.routed_scaling_factor)
        routed = experts(x, routing, self._w13, self._w2, config.swiglu_limit)
        hidden = self._kernels.silu_mul(self._shared_w13(x.to(self._dtype)), config.swiglu_limit)
        return routed + self._shared_w2(hidden).float()


class Block:
    """`attention` is driven by the caller, who owns caches and step indices."""

    def __init__(
        self,
        config: DeepseekV4Config,
        weights: BlockWeights,
        kernels: Kernels,
        formats: CacheFormats,
        dtype: torch.dtype,
    ) -> None:
        self.attention = Attention(config, weights.attention, kernels, formats, dtype)
        self._moe = MoE(config, weights.moe, kernels, dtype)
        self._hc_attn = connection(config, weights.hc_attn)
        self._hc_ffn = connection(config, weights.hc_ffn)
        self._attn_norm, self._ffn_norm = weights.attn_norm, weights.ffn_norm
        self._kernels, self._eps = kernels, config.rms_norm_eps

    def __call__(self, streams: Tensor, token_ids: Tensor, attend: AttentionCall) -> Tensor:
        """streams [T, N, C] float32 -> the same."""
        u, post, comb = mhc_pre(streams, self._hc_attn)
        streams = mhc_post(streams, attend(self._kernels.rms_norm(u, self._attn_norm, self._eps)), post, comb)
        u, post, comb = mhc_pre(streams, self._hc_ffn)
        y = self._moe(self._kernels.rms_norm(u, self._ffn_norm, self._eps), token_ids)
        return mhc_post(streams, y, post, comb)


class Collapse:
    """Streams [T, N, C] -> normalised hidden states [T, C], ready for the output head."""

    def __init__(self, config: DeepseekV4Config, weights: CollapseWeights, kernels: Kernels) -> None:
        self._head = connection(config, weights.hc_head)
        self._norm, self._kernels, self._eps = weights.norm, kernels, config.rms_norm_eps

    def __call__(self, streams: Tensor) -> Tensor:
        return self._kernels.rms_norm(mhc_head(streams, self._head), self._norm, self._eps)


def connection(config: DeepseekV4Config, weights: ConnectionWeights) -> HyperConnection:
    return HyperConnection(
        fn=weights.fn,
        base=weights.base,
        scale=weights.scale,
        num_streams=config.hc_mult,
        sinkhorn_iters=config.hc_sinkhorn_iters,
        eps=config.hc_eps,
        norm_eps=config.rms_norm_eps,
    )
