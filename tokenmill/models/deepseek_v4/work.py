"""Parameters, FLOPs and bytes of DeepSeek V4 as functions of its config; torch-free.

Multiply-add = 2 FLOPs; C hidden, H heads, D head_dim, R ranks, E experts, F expert width, N streams. Weight
bytes follow the released storage: routed experts in FP4 or FP8, other linear layers in FP8, the rest in bf16.
Formulas for attention over a context of S tokens: specification section 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError
from tokenmill.core.work import Work
from tokenmill.core.work_description import KeyRead, WorkDescription
from tokenmill.models.deepseek_v4.config import CSA_RATIO, AttentionKind, DeepseekV4Config, kind_of_ratio
from tokenmill.models.deepseek_v4.groups import CacheFormats, cache_formats, csa_state_bytes, hca_state_bytes


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of weights by how they are stored and used; all layers of a part together.

    experts    routed experts
    linears    attention projections and shared experts (FP8 in the released checkpoints)
    other      embedding, output head, compressors, gates, hyper-connections, norms (bf16, some float32)
    """

    experts: int = 0
    linears: int = 0
    other: int = 0

    def __add__(self, more: Parameters) -> Parameters:
        return Parameters(self.experts + more.experts, self.linears + more.linears, self.other + more.other)

    @property
    def total(self) -> int:
        return self.experts + self.linears + self.other


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes per weight of each part; scales included."""

    experts: float
    linears: float
    other: float

    def of(self, parameters: Parameters) -> float:
        return (
            parameters.experts * self.experts
            + parameters.linears * self.linears
            + parameters.other * self.other
        )  # fmt: skip


FP8 = 1.0 + 1 / 128**2  # e4m3, one byte of scale per 128x128 block
MXFP4 = 0.5 + 1 / 32  # two codes per byte, one e8m0 byte per 32
NVFP4 = 0.5 + 1 / 16  # two codes per byte, one e4m3 byte per 16
BF16, FP32 = 2.0, 4.0

RELEASED = WeightBytes(experts=MXFP4, linears=FP8, other=BF16)


# -- parameters --


def attention_parameters(config: DeepseekV4Config, ratio: int) -> Parameters:
    c, d, width = config.hidden_size, config.head_dim, config.num_attention_heads * config.head_dim
    linears = c * config.q_lora_rank + config.q_lora_rank * width + c * d
    linears += config.o_lora_rank * width + c * config.o_groups * config.o_lora_rank  # wo_a over all groups, wo_b
    other = config.q_lora_rank + d + config.num_attention_heads
    if ratio:
        other += _compressor_parameters(c, ratio, d)
    if ratio == CSA_RATIO:
        other += _compressor_parameters(c, ratio, config.index_head_dim) + config.index_n_heads * c
        linears += config.index_n_heads * config.index_head_dim * config.q_lora_rank
    return Parameters(linears=linears, other=other)


def _compressor_parameters(hidden: int, ratio: int, dim: int) -> int:
    wide = 2 * dim if ratio == CSA_RATIO else dim
    return 2 * wide * hidden + ratio * wide + dim


def moe_parameters(config: DeepseekV4Config, num_experts: int, *, is_hash: bool) -> Parameters:
    """With `num_experts` = n_routed_experts all weights, with num_experts_per_tok those a token meets."""
    expert = 3 * config.hidden_size * config.moe_intermediate_size
    gate = config.n_routed_experts * (config.hidden_size + (0 if is_hash else 1))
    return Parameters(experts=num_experts * expert, linears=expert, other=gate)


def _block(config: DeepseekV4Config, ratio: int, num_experts: int, *, is_hash: bool) -> Parameters:
    n = config.hc_mult
    connection = (2 + n) * n * (n * config.hidden_size + 1) + 3
    shell = Parameters(other=2 * connection + 2 * config.hidden_size)
    return shell + attention_parameters(config, ratio) + moe_parameters(config, num_experts, is_hash=is_hash)


def _collapse(config: DeepseekV4Config) -> Parameters:
    """hc_head and the final norm."""
    n, c = config.hc_mult, config.hidden_size
    return Parameters(other=n * (n * c + 1) + 1 + c)


def trunk_parameters(config: DeepseekV4Config, *, active: bool = False) -> Parameters:
    """Without MTP. Active: what one token is multiplied with, hence the head but not the embedding table."""
    num_experts = config.num_experts_per_tok if active else config.n_routed_experts
    table = config.vocab_size * config.hidden_size
    num_tables = 1 if active or config.tie_word_embeddings else 2
    total = Parameters(other=num_tables * table) + _collapse(config)
    for ratio, is_hash in zip(config.compress_ratios, config.hash_layers, strict=True):
        total += _block(config, ratio, num_experts, is_hash=is_hash)
    return total


def mtp_parameters(config: DeepseekV4Config, *, active: bool = False) -> Parameters:
    """One MTP block; embedding and head are the trunk's. Active: the head counts, a draft needs its logits."""
    c = config.hidden_size
    num_experts = config.num_experts_per_tok if active else config.n_routed_experts
    block = _block(config, 0, num_experts, is_hash=False) + _collapse(config)
    extra = Parameters(linears=2 * c * c, other=2 * c)
    return block + extra + (Parameters(other=config.vocab_size * c) if active else Parameters())


# -- FLOPs --


def attention_flops(config: DeepseekV4Config, context: int) -> float:
    """Scores and weighted values of one token that sees `context` tokens, all trunk layers."""
    in_window = min(context, config.sliding_window)
    num_keys = sum(in_window + _num_attended(config, ratio, context) for ratio in config.compress_ratios)
    return 4.0 * config.num_attention_heads * config.head_dim * num_keys


def _num_attended(config: DeepseekV4Config, ratio: int, context: int) -> float:
    if ratio == 0:
        return 0
    return min(config.index_topk, context / CSA_RATIO) if ratio == CSA_RATIO else context / ratio


def indexer_flops(config: DeepseekV4Config, context: int) -> float:
    num_csa = len(config.layers_of(AttentionKind.CSA))
    return num_csa * 2.0 * config.index_n_heads * config.index_head_dim * context / CSA_RATIO


def token_flops(config: DeepseekV4Config, context: int) -> float:
    """One token at a context of `context` tokens, output head included."""
    weights = 2.0 * trunk_parameters(config, active=True).total
    return weights + attention_flops(config, context) + indexer_flops(config, context)


# -- bytes of a step --


def cache_read_bytes(config: DeepseekV4Config, formats: CacheFormats, context: int) -> float:
    """Read for one token: window and attended entries of every layer, all index keys, compressor state."""
    row = formats.kv.row_bytes
    in_window = min(context, config.sliding_window)
    rows = sum(in_window + _num_attended(config, ratio, context) for ratio in config.compress_ratios)
    keys = len(config.layers_of(AttentionKind.CSA)) * context // CSA_RATIO
    state = csa_state_bytes(config) + hca_state_bytes(config)
    return rows * row + keys * formats.index.row_bytes + state


def expected_experts(config: DeepseekV4Config, num_tokens: int) -> float:
    """Distinct experts that `num_tokens` tokens visit in one layer, if each draws K of E evenly."""
    e, k = config.n_routed_experts, config.num_experts_per_tok
    return e * (1.0 - (1.0 - k / e) ** num_tokens)


def step_weight_bytes(config: DeepseekV4Config, num_tokens: int, stored: WeightBytes = RELEASED) -> float:
    """Weights read by a step: everything once, of the experts those that some token visits."""
    if num_tokens == 0:
        return 0.0
    whole = trunk_parameters(config)
    visited = expected_experts(config, num_tokens) / config.n_routed_experts
    embedding = config.vocab_size * config.hidden_size
    rows = num_tokens * config.hidden_size
    read = stored.of(whole) - stored.experts * whole.experts * (1 - visited)
    return read - (0 if config.tie_word_embeddings else stored.other * (embedding - rows))


def step_work(
    config: DeepseekV4Config,
    formats: CacheFormats,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    stored: WeightBytes = RELEASED,
) -> Work:
    """A step in which sequence b computes query_lens[b] tokens behind context_lens[b] cached ones.

    A sequence's rows share one read of its cache, at its full length; attention FLOPs are taken at the mean
    context of its rows, which is exact where they are linear in it.
    """
    num_tokens = sum(query_lens)
    flops = 2.0 * trunk_parameters(config, active=True).total * num_tokens
    cache = 0.0
    for query, context in zip(query_lens, context_lens, strict=True):
        mean = context + (query + 1) // 2
        flops += query * (attention_flops(config, mean) + indexer_flops(config, mean))
        cache += cache_read_bytes(config, formats, context + query) if query else 0.0
    return Work(flops=flops, weight_bytes=step_weight_bytes(config, num_tokens, stored), cache_bytes=cache)


def kinds(config: DeepseekV4Config) -> dict[str, int]:
    """Number of trunk layers of each attention kind."""
    names = [kind_of_ratio(ratio).value for ratio in config.compress_ratios]
    return {kind.value: names.count(kind.value) for kind in AttentionKind}


# -- for pricing --

#: Stored bytes by precision. The released experts are FP4 already: fp8 is the released checkpoint, too.
_STORED = {
    "fp4": RELEASED,
    "fp8": RELEASED,
    "nvfp4": WeightBytes(experts=NVFP4, linears=FP8, other=BF16),
    "fp8_experts": WeightBytes(experts=FP8, linears=FP8, other=BF16),
    "bf16": WeightBytes(experts=BF16, linears=BF16, other=BF16),
}


def describe(
    config: DeepseekV4Config, precision: str = "fp4", *, name: str = "deepseek-v4", formats: CacheFormats | None = None
) -> WorkDescription:
    """The whole model in the terms of a step-time model; formats default to packed FP8 rows and FP4 index keys."""
    stored = _STORED.get(precision)
    if stored is None:
        raise ConfigError(f"precision {precision!r} is not possible for {name}: choose {', '.join(_STORED)}")
    wide = precision == "bf16"
    formats = formats or cache_formats(config, "bfloat16", *(("bf16", "bf16") if wide else ("fp8_e4m3", "fp4")))
    whole, active = trunk_parameters(config), trunk_parameters(config, active=True)
    table = config.vocab_size * config.hidden_size
    dense = Parameters(linears=active.linears, other=active.other - table)
    keys = _key_reads(config, formats)
    window = config.num_hidden_layers * config.sliding_window * formats.kv.row_bytes
    num_mtp = 1 if config.num_nextn_predict_layers else 0
    return WorkDescription(
        name=name,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        dense_params=dense.total,
        dense_bytes=stored.of(dense),
        head_params=table,
        head_bytes=stored.other * table,
        embedding_bytes=0.0 if config.tie_word_embeddings else stored.other * table,
        keys=keys,
        kv_bytes_per_token=_growth_bytes(config, formats),
        kv_bytes_constant=window + csa_state_bytes(config) + hca_state_bytes(config),
        num_moe_layers=config.num_hidden_layers,
        num_experts=config.n_routed_experts,
        experts_per_token=config.num_experts_per_tok,
        expert_params=3 * config.hidden_size * config.moe_intermediate_size,
        expert_bytes=stored.experts * whole.experts,
        dense_dtype="bf16" if wide else "fp8",
        expert_dtype={"fp8_experts": "fp8", "nvfp4": "fp4", "fp8": "fp4"}.get(precision, precision),
        draft_params=num_mtp * mtp_parameters(config, active=True).total,
        draft_bytes=num_mtp * stored.of(mtp_parameters(config)),
        ops_per_layer=_ops_per_layer(config),
        max_model_len=config.max_position_embeddings,
    )


def _ops_per_layer(config: DeepseekV4Config) -> float:
    """As in DeepSeek V3 (24), the output in two products (1), hyper-connections twice (project, Sinkhorn, pre, post),
    a compressor (projection, pooling, norm with write), and in CSA layers an indexer with one of its own (8).
    """
    compressed = sum(1 for ratio in config.compress_ratios if ratio) / config.num_hidden_layers
    indexed = len(config.layers_of(AttentionKind.CSA)) / config.num_hidden_layers
    return 24 + 1 + 8 + 3 * compressed + 8 * indexed


def _key_reads(config: DeepseekV4Config, formats: CacheFormats) -> tuple[KeyRead, ...]:
    """Window rows of all layers, selected entries and index keys of CSA layers, entries of HCA layers."""
    flops, row = 4.0 * config.num_attention_heads * config.head_dim, formats.kv.row_bytes
    num_layers, num_csa = config.num_hidden_layers, len(config.layers_of(AttentionKind.CSA))
    reads = [KeyRead(num_layers * flops, num_layers * row, 1.0, config.sliding_window)]
    if num_csa:
        score = 2.0 * config.index_n_heads * config.index_head_dim
        reads.append(KeyRead(num_csa * flops, num_csa * row, CSA_RATIO, config.index_topk))
        reads.append(KeyRead(num_csa * score, num_csa * formats.index.row_bytes, CSA_RATIO))
    for ratio in sorted({r for r in config.compress_ratios if kind_of_ratio(r) is AttentionKind.HCA}):
        num = config.compress_ratios.count(ratio)
        reads.append(KeyRead(num * flops, num * row, ratio))
    return tuple(reads)


def _growth_bytes(config: DeepseekV4Config, formats: CacheFormats) -> float:
    num_csa = len(config.layers_of(AttentionKind.CSA))
    entries = sum(1 / r for r in config.compress_ratios if kind_of_ratio(r) is AttentionKind.HCA)
    return num_csa * (formats.kv.row_bytes + formats.index.row_bytes) / CSA_RATIO + entries * formats.kv.row_bytes
