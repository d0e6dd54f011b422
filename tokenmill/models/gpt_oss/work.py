"""gpt-oss-120b in numbers; torch-free. It is priced here, not served.

Source: config.json of openai/gpt-oss-120b (August 2025): 36 layers, every other one with a window of 128 tokens,
128 experts of which a token meets 4, experts in MXFP4, the rest in bf16.
"""

from __future__ import annotations

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import KeyRead, WorkDescription

_C, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM, _VOCAB = 2880, 36, 64, 8, 64, 201088
_EXPERTS, _PER_TOKEN, _F, _WINDOW = 128, 4, 2880, 128
_MXFP4, _BF16 = 0.53125, 2.0


def attention_params() -> int:
    """Projections with their biases, sinks, norms and the gate, all layers."""
    q, kv = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    projections = _C * (q + 2 * kv) + q + 2 * kv + q * _C + _C
    return _LAYERS * (projections + _HEADS + 2 * _C + _EXPERTS * (_C + 1)) + _C


def expert_params() -> int:
    return 3 * _C * _F + 2 * _F + _C


def describe(precision: str = "fp4", *, name: str = "gpt-oss-120b") -> WorkDescription:
    """fp4 (MXFP4 experts) as released, FP8 caches; bf16: everything expanded."""
    if precision not in ("fp4", "bf16"):
        raise ConfigError(f"precision {precision!r} is not possible for {name}: choose fp4 or bf16")
    per_expert, per_value = (_MXFP4, 1.0) if precision == "fp4" else (_BF16, _BF16)
    table, half = _VOCAB * _C, _LAYERS // 2
    flops, row = 4.0 * _HEADS * _HEAD_DIM, 2 * _KV_HEADS * _HEAD_DIM * per_value
    return WorkDescription(
        name=name,
        num_layers=_LAYERS,
        hidden_size=_C,
        vocab_size=_VOCAB,
        dense_params=attention_params(),
        dense_bytes=_BF16 * attention_params(),
        head_params=table,
        head_bytes=_BF16 * table,
        embedding_bytes=_BF16 * table,
        keys=(KeyRead(half * flops, half * row), KeyRead(half * flops, half * row, 1.0, _WINDOW)),
        kv_bytes_per_token=half * row,
        kv_bytes_constant=half * row * _WINDOW,
        kv_shards=_KV_HEADS,
        num_moe_layers=_LAYERS,
        num_experts=_EXPERTS,
        experts_per_token=_PER_TOKEN,
        expert_params=expert_params(),
        expert_bytes=per_expert * _LAYERS * _EXPERTS * expert_params(),
        dense_dtype="bf16",
        expert_dtype=precision,
        ops_per_layer=12,  # norm, qkv, rope and write, attention, o, norm, gate, top-k, permute, two products, combine
        max_model_len=131072,
    )
