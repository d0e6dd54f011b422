"""Parameters, FLOPs and bytes per step of a Llama-family model as functions of its config. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokenmill.core.errors import ConfigError
from tokenmill.core.work import Work
from tokenmill.core.work_description import KeyRead, WorkDescription
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
    bytes_per_cache_value: float,
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


_BYTES_PER_WEIGHT = {"float32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5625}


def describe(config: LlamaConfig, precision: str = "bf16", *, name: str = "llama") -> WorkDescription:
    """For pricing. Embedding, head and caches stay in bf16 (float32 with float32) whatever the linears are."""
    if precision not in _BYTES_PER_WEIGHT:
        possible = ", ".join(_BYTES_PER_WEIGHT)
        raise ConfigError(f"precision {precision!r} is not possible for {name}: choose {possible}")
    per_weight, per_value = _BYTES_PER_WEIGHT[precision], 4.0 if precision == "float32" else 2.0
    table = config.vocab_size * config.hidden_size
    dense = num_parameters(config) - table * (1 if config.is_tied else 2)
    row = 2 * config.kv_size * per_value
    full = sum(1 for window in config.layer_windows if window is None)
    windows = [window for window in config.layer_windows if window is not None]
    reads = [KeyRead(full * 4.0 * config.q_size, full * row)] if full else []
    for window, num_layers in Counter(windows).items():
        reads.append(KeyRead(num_layers * 4.0 * config.q_size, num_layers * row, 1.0, window))
    dtype = {"float32": "bf16", "int8": "bf16"}.get(precision, precision)
    return WorkDescription(
        name=name,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        dense_params=dense,
        dense_bytes=dense * per_weight,
        head_params=table,
        head_bytes=table * per_value,
        embedding_bytes=0.0 if config.is_tied else table * per_value,
        keys=tuple(reads),
        kv_bytes_per_token=full * row,
        kv_bytes_constant=sum(windows) * row,
        kv_shards=config.num_kv_heads,
        dense_dtype=dtype,
        expert_dtype=dtype,
        ops_per_layer=9,  # norm, qkv, rope and write, attention, o, norm, gate and up, activation, down
        max_model_len=config.max_model_len,
    )
