"""Parameters, FLOPs and bytes per step of a Llama-family model as functions of its config. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokenmill.core.work import Work
from tokenmill.kernels.attention.work import attention_work
from tokenmill.kernels.embedding.work import embedding_work
from tokenmill.kernels.linear.work import linear_work
from tokenmill.kernels.rms_norm.work import rms_norm_work
from tokenmill.kernels.rope.work import rope_work
from tokenmill.kernels.silu_mul.work import silu_mul_work
from tokenmill.models.llama_config import LlamaConfig


def linear_shapes(config: LlamaConfig) -> list[tuple[int, int]]:
    """(in, out) of one layer's projections: qkv, o, gate and up, down."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return [
        (hidden, config.q_size + 2 * config.kv_size),
        (config.q_size, hidden),
        (hidden, 2 * inner),
        (inner, hidden),
    ]


def num_parameters(config: LlamaConfig) -> int:
    """All of them; a tied head counts once."""
    layer = sum(inputs * outputs for inputs, outputs in linear_shapes(config)) + 2 * config.hidden_size
    layer += (config.q_size + 2 * config.kv_size) * config.has_qkv_bias + config.hidden_size * config.has_o_bias
    layer += (2 * config.intermediate_size + config.hidden_size) * config.has_mlp_bias
    layer += 2 * config.head_dim * config.has_qk_norm
    tables = config.vocab_size * config.hidden_size * (1 if config.is_tied else 2)
    return config.num_layers * layer + tables + config.hidden_size


def step_work(
    config: LlamaConfig,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    bytes_per_weight: float,
    bytes_per_cache_value: int,
) -> Work:
    """One step over B sequences; logits are counted for one row per sequence."""
    rows = sum(query_lens)
    work = _layer_work(config, rows, bytes_per_weight).scaled(config.num_layers)
    for window, num_layers in Counter(config.layer_windows).items():
        for query_len, context_len in zip(query_lens, context_lens, strict=True):
            work += attention_work(
                query_len,
                context_len,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                cache_bytes_per_value=bytes_per_cache_value,
                window=window,
            ).scaled(num_layers)
    work += embedding_work(rows, config.hidden_size, bytes_per_weight)
    work += rms_norm_work(rows, config.hidden_size, bytes_per_weight)
    return work + linear_work(len(query_lens), config.hidden_size, config.vocab_size, bytes_per_weight)


def _layer_work(config: LlamaConfig, rows: int, bytes_per_weight: float) -> Work:
    """Everything of one layer but attention."""
    work = Work()
    for inputs, outputs in linear_shapes(config):
        work += linear_work(rows, inputs, outputs, bytes_per_weight)
    for _ in range(2):
        work += rms_norm_work(rows, config.hidden_size, bytes_per_weight)
    if config.has_qk_norm:
        work += rms_norm_work(rows * (config.num_heads + config.num_kv_heads), config.head_dim, bytes_per_weight)
    work += rope_work(rows, config.num_heads + config.num_kv_heads, config.head_dim)
    return work + silu_mul_work(rows, config.intermediate_size)
