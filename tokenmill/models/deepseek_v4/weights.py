"""The model's tensors, fused where layers share an input, and where each checkpoint tensor goes.

Storage: linear layers and experts in the model's dtype; norms, sinks, gates, compressors and hyper-connections in
float32, in which they are computed. Not responsible for: reading files (checkpoint.py), arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tokenmill.models.deepseek_v4.config import CSA_RATIO, DeepseekV4Config


@dataclass(slots=True)
class CompressorWeights:
    """ape [r, m D], norm [D]; the projections lie in AttentionWeights.compress. m = 2 for CSA, 1 for HCA."""

    ape: Tensor
    norm: Tensor


@dataclass(slots=True)
class AttentionWeights:
    """
    qkv       [q_lora + D, C]: wq_a, then wkv
    wq_b      [H D, q_lora]
    wo_a      [G, R, H D / G], wo_b [C, G R]
    compress  [.., C] float32: wkv and wgate of the main compressor, then of the indexer's; None for ratio 0
    index_*   CSA layers only
    """

    qkv: Tensor
    q_norm: Tensor
    kv_norm: Tensor
    wq_b: Tensor
    wo_a: Tensor
    wo_b: Tensor
    sink: Tensor
    compress: Tensor | None = None
    compressor: CompressorWeights | None = None
    index_compressor: CompressorWeights | None = None
    index_wq_b: Tensor | None = None
    index_weights: Tensor | None = None


@dataclass(slots=True)
class ConnectionWeights:
    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(slots=True)
class MoEWeights:
    """gate [E, C]; bias [E] or hash table [V, K]; w13 [E, 2F, C] gate half first; shared expert likewise."""

    gate: Tensor
    bias: Tensor | None
    table: Tensor | None
    w13: Tensor
    w2: Tensor
    shared_w13: Tensor
    shared_w2: Tensor


@dataclass(slots=True)
class BlockWeights:
    attn_norm: Tensor
    ffn_norm: Tensor
    hc_attn: ConnectionWeights
    hc_ffn: ConnectionWeights
    attention: AttentionWeights
    moe: MoEWeights


@dataclass(slots=True)
class CollapseWeights:
    """Weighted sum of the streams, then the norm before the output head."""

    hc_head: ConnectionWeights
    norm: Tensor


@dataclass(slots=True)
class MtpWeights:
    e_proj: Tensor
    h_proj: Tensor
    enorm: Tensor
    hnorm: Tensor
    block: BlockWeights
    collapse: CollapseWeights


@dataclass(slots=True)
class Weights:
    """head is the embedding itself when they are tied."""

    embed: Tensor
    head: Tensor
    blocks: list[BlockWeights]
    collapse: CollapseWeights
    mtp: list[MtpWeights]


class _Allocator:
    """Uninitialised tensors on one device; `plain` in the model's dtype, `wide` in float32."""

    def __init__(self, config: DeepseekV4Config, dtype: torch.dtype, device: str) -> None:
        self.config, self.dtype, self.device = config, dtype, device

    def plain(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def wide(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def connection(self) -> ConnectionWeights:
        n = self.config.hc_mult
        num_mixes = (2 + n) * n
        return ConnectionWeights(self.wide(num_mixes, n * self.config.hidden_size), self.wide(num_mixes), self.wide(3))

    def collapse(self) -> CollapseWeights:
        n, c = self.config.hc_mult, self.config.hidden_size
        return CollapseWeights(ConnectionWeights(self.wide(n, n * c), self.wide(n), self.wide(1)), self.wide(c))

    def attention(self, ratio: int) -> AttentionWeights:
        config = self.config
        c, d, width = config.hidden_size, config.head_dim, config.num_attention_heads * config.head_dim
        weights = AttentionWeights(
            qkv=self.plain(config.q_lora_rank + d, c),
            q_norm=self.wide(config.q_lora_rank),
            kv_norm=self.wide(d),
            wq_b=self.plain(width, config.q_lora_rank),
            wo_a=self.plain(config.o_groups, config.o_lora_rank, width // config.o_groups),
            wo_b=self.plain(c, config.o_groups * config.o_lora_rank),
            sink=self.wide(config.num_attention_heads),
        )
        if ratio:
            num_parts = 2 if ratio == CSA_RATIO else 1
            index_dim = config.index_head_dim if ratio == CSA_RATIO else 0
            weights.compress = self.wide(2 * num_parts * (d + index_dim), c)
            weights.compressor = CompressorWeights(self.wide(ratio, num_parts * d), self.wide(d))
        if ratio == CSA_RATIO:
            dim, heads = config.index_head_dim, config.index_n_heads
            weights.index_compressor = CompressorWeights(self.wide(ratio, 2 * dim), self.wide(dim))
            weights.index_wq_b = self.plain(heads * dim, config.q_lora_rank)
            weights.index_weights = self.wide(heads, c)
        return weights

    def moe(self, *, is_hash: bool) -> MoEWeights:
        config = self.config
        e, c, f = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        table_shape = (config.vocab_size, config.num_experts_per_tok)
        return MoEWeights(
            gate=self.wide(e, c),
            bias=None if is_hash else self.wide(e),
            table=torch.empty(table_shape, dtype=torch.int64, device=self.device) if is_hash else None,
            w13=self.plain(e, 2 * f, c),
            w2=self.plain(e, c, f),
            shared_w13=self.plain(2 * f, c),
            shared_w2=self.plain(c, f),
        )

    def block(self, ratio: int, *, is_hash: bool) -> BlockWeights:
        c = self.config.hidden_size
        return BlockWeights(
            self.wide(c),
            self.wide(c),
            self.connection(),
            self.connection(),
            self.attention(ratio),
            self.moe(is_hash=is_hash),
        )

    def mtp(self) -> MtpWeights:
        c = self.config.hidden_size
        projections = self.plain(c, c), self.plain(c, c), self.wide(c), self.wide(c)
        return MtpWeights(*projections, self.block(0, is_hash=False), self.collapse())


def allocate(config: DeepseekV4Config, dtype: torch.dtype, *, num_mtp: int, device: str = "cpu") -> Weights:
    """All tensors, not initialised; on the meta device nothing is stored and a full-size model takes a second."""
    make = _Allocator(config, dtype, device)
    embed = make.plain(config.vocab_size, config.hidden_size)
    return Weights(
        embed=embed,
        head=embed if config.tie_word_embeddings else make.plain(config.vocab_size, config.hidden_size),
        blocks=[
            make.block(ratio, is_hash=is_hash)
            for ratio, is_hash in zip(config.compress_ratios, config.hash_layers, strict=True)
        ],
        collapse=make.collapse(),
        mtp=[make.mtp() for _ in range(num_mtp)],
    )


def tensors_of(node: object) -> Iterator[Tensor]:
    """Every tensor below a weights object, shared ones once per place."""
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from tensors_of(item)
    elif node is not None:
        for item in fields(node):  # type: ignore[arg-type]
            yield from tensors_of(getattr(node, item.name))


def count_parameters(weights: Weights) -> int:
    """Weights as the released figures count them: routing tables are data, tied tensors count once."""
    distinct = {id(t): t.numel() for t in tensors_of(weights) if t.is_floating_point()}
    return sum(distinct.values())


# -- where checkpoint tensors go (names of the hub) --


def destinations(config: DeepseekV4Config, weights: Weights) -> dict[str, Tensor]:
    """Hub name -> the tensor or slice to fill, in the shape that the checkpoint has."""
    out = {"embed.weight": weights.embed, "norm.weight": weights.collapse.norm}
    if not config.tie_word_embeddings:
        out["head.weight"] = weights.head
    out |= _connection("hc_head_", weights.collapse.hc_head)
    for i, block in enumerate(weights.blocks):
        out |= _block(f"layers.{i}.", block, config)
    for i, mtp in enumerate(weights.mtp):
        prefix = f"mtp.{i}."
        for name in ("e_proj", "h_proj", "enorm", "hnorm"):
            out[f"{prefix}{name}.weight"] = getattr(mtp, name)
        out |= _block(prefix, mtp.block, config)
        out |= _connection(f"{prefix}hc_head_", mtp.collapse.hc_head)
        out[f"{prefix}norm.weight"] = mtp.collapse.norm
    return out


def _connection(prefix: str, weights: ConnectionWeights) -> dict[str, Tensor]:
    return {f"{prefix}{name}": getattr(weights, name) for name in ("fn", "base", "scale")}


def _block(prefix: str, block: BlockWeights, config: DeepseekV4Config) -> dict[str, Tensor]:
    return {
        f"{prefix}attn_norm.weight": block.attn_norm,
        f"{prefix}ffn_norm.weight": block.ffn_norm,
        **_connection(f"{prefix}hc_attn_", block.hc_attn),
        **_connection(f"{prefix}hc_ffn_", block.hc_ffn),
        **_attention(f"{prefix}attn.", block.attention, config),
        **_moe(f"{prefix}ffn.", block.moe),
    }


def _attention(prefix: str, weights: AttentionWeights, config: DeepseekV4Config) -> dict[str, Tensor]:
    rank, d = config.q_lora_rank, config.head_dim
    out = {
        "attn_sink": weights.sink,
        "wq_a.weight": weights.qkv[:rank],
        "wkv.weight": weights.qkv[rank:],
        "q_norm.weight": weights.q_norm,
        "kv_norm.weight": weights.kv_norm,
        "wq_b.weight": weights.wq_b,
        "wo_a.weight": weights.wo_a.flatten(0, 1),
        "wo_b.weight": weights.wo_b,
    }
    if weights.compressor is not None and weights.compress is not None:
        num_parts = weights.compressor.ape.shape[1] // d
        main, rest = weights.compress.split([2 * num_parts * d, weights.compress.shape[0] - 2 * num_parts * d])
        out |= _compressor("compressor.", weights.compressor, main)
        if weights.index_compressor is not None:
            assert weights.index_wq_b is not None and weights.index_weights is not None
            out |= _compressor("indexer.compressor.", weights.index_compressor, rest)
            out["indexer.wq_b.weight"] = weights.index_wq_b
            out["indexer.weights_proj.weight"] = weights.index_weights
    return {prefix + name: tensor for name, tensor in out.items()}


def _compressor(prefix: str, weights: CompressorWeights, projections: Tensor) -> dict[str, Tensor]:
    wkv, wgate = projections.chunk(2)
    return {
        f"{prefix}ape": weights.ape,
        f"{prefix}norm.weight": weights.norm,
        f"{prefix}wkv.weight": wkv,
        f"{prefix}wgate.weight": wgate,
    }


def _moe(prefix: str, weights: MoEWeights) -> dict[str, Tensor]:
    out = {f"{prefix}gate.weight": weights.gate}
    if weights.bias is not None:
        out[f"{prefix}gate.bias"] = weights.bias
    if weights.table is not None:
        out[f"{prefix}gate.tid2eid"] = weights.table
    shared = f"{prefix}shared_experts"
    for name, w13, w2 in [
        *((f"{prefix}experts.{e}", weights.w13[e], weights.w2[e]) for e in range(weights.w13.shape[0])),
        (shared, weights.shared_w13, weights.shared_w2),
    ]:
        w1, w3 = w13.chunk(2)
        out |= {f"{name}.w1.weight": w1, f"{name}.w3.weight": w3, f"{name}.w2.weight": w2}
    return out
