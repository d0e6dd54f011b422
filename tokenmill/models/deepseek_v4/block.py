"""One V4 block: hyper-connection, attention, hyper-connection, mixture of experts; and the collapse at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.mhc import reference as mhc
from tokenmill.kernels.mhc.api import HyperConnection, MhcHead, MhcPost, MhcPre
from tokenmill.kernels.moe import reference as moe
from tokenmill.kernels.moe.api import Experts, HashRouter, Router
from tokenmill.kernels.select import Kernels
from tokenmill.models.deepseek_v4.attention import Attention
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.weights import BlockWeights, CollapseWeights, ConnectionWeights, MoEWeights

#: The attention of a block as the caller wires it to caches: normalised input [T, C] -> output [T, C].
AttentionCall = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class BlockOps:
    """Ops of a block that differ between the engine's forward and a forward with gradients (dense.py)."""

    mhc_pre: MhcPre = mhc.mhc_pre
    mhc_post: MhcPost = mhc.mhc_post
    mhc_head: MhcHead = mhc.mhc_head
    router: Router = moe.router
    hash_router: HashRouter = moe.hash_router
    experts: Experts = moe.experts


REFERENCE_OPS = BlockOps()


class MoE:
    def __init__(
        self, config: DeepseekV4Config, weights: MoEWeights, kernels: Kernels, dtype: torch.dtype, ops: BlockOps
    ) -> None:
        self._config, self._kernels, self._dtype, self._ops = config, kernels, dtype, ops
        self._gate, self._bias, self._table = weights.gate, weights.bias, weights.table
        self._w13, self._w2 = weights.w13, weights.w2
        self._shared_w13 = kernels.linear(weights.shared_w13)
        self._shared_w2 = kernels.linear(weights.shared_w2)

    def __call__(self, x: Tensor, token_ids: Tensor) -> Tensor:
        """x [T, C] float32 -> [T, C] float32; the ids are needed in hash layers only."""
        config = self._config
        if self._table is not None:
            routing = self._ops.hash_router(x, self._gate, self._table, token_ids, config.routed_scaling_factor)
        else:
            assert self._bias is not None
            top_k = config.num_experts_per_tok
            routing = self._ops.router(x, self._gate, self._bias, top_k, config.routed_scaling_factor)
        routed = self._ops.experts(x, routing, self._w13, self._w2, config.swiglu_limit)
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
        ops: BlockOps = REFERENCE_OPS,
    ) -> None:
        self.attention = Attention(config, weights.attention, kernels, formats, dtype)
        self.moe = MoE(config, weights.moe, kernels, dtype, ops)
        self._ops = ops
        self._hc_attn = connection(config, weights.hc_attn)
        self._hc_ffn = connection(config, weights.hc_ffn)
        self._attn_norm, self._ffn_norm = weights.attn_norm, weights.ffn_norm
        self._kernels, self._eps = kernels, config.rms_norm_eps

    def __call__(self, streams: Tensor, token_ids: Tensor, attend: AttentionCall) -> Tensor:
        """streams [T, N, C] float32 -> the same."""
        u, post, comb = self._ops.mhc_pre(streams, self._hc_attn)
        streams = self._ops.mhc_post(streams, attend(self._kernels.rms_norm(u, self._attn_norm, self._eps)), post, comb)
        u, post, comb = self._ops.mhc_pre(streams, self._hc_ffn)
        y = self.moe(self._kernels.rms_norm(u, self._ffn_norm, self._eps), token_ids)
        return self._ops.mhc_post(streams, y, post, comb)


class Collapse:
    """Streams [T, N, C] -> normalised hidden states [T, C], ready for the output head."""

    def __init__(
        self,
        config: DeepseekV4Config,
        weights: CollapseWeights,
        kernels: Kernels,
        ops: BlockOps = REFERENCE_OPS,
    ) -> None:
        self._ops = ops
        self._head = connection(config, weights.hc_head)
        self._norm, self._kernels, self._eps = weights.norm, kernels, config.rms_norm_eps

    def __call__(self, streams: Tensor) -> Tensor:
        return self._kernels.rms_norm(self._ops.mhc_head(streams, self._head), self._norm, self._eps)


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
