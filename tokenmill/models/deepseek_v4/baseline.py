"""DeepSeek V3.2 in numbers, the model that V4 is measured against; torch-free. It is sized here, not served.

Source: config.json of deepseek-ai/DeepSeek-V3.2-Exp and the DeepSeek-V3 report (arXiv 2412.19437): latent
attention with 512 + 64 cached channels, and since V3.2 an indexer of 64 heads x 128 that keeps 2048 tokens.
"""

from __future__ import annotations

from tokenmill.models.deepseek_v4.work import BF16, FP8, NVFP4, Parameters, WeightBytes

_C, _LAYERS, _DENSE, _HEADS, _VOCAB = 7168, 61, 3, 128, 129280
_Q_RANK, _KV_RANK, _NOPE, _ROPE, _V = 1536, 512, 128, 64, 128
_EXPERTS, _PER_TOKEN, _F, _DENSE_F = 256, 8, 2048, 18432
_INDEX_HEADS, _INDEX_DIM, _INDEX_TOPK = 64, 128, 2048

#: Bytes per token and layer: (kv entry, indexer key).
CACHE_BYTES = {"bf16": (2 * (_KV_RANK + _ROPE), 2 * _INDEX_DIM), "fp8_e4m3": (656, 132)}


def _attention(*, has_indexer: bool = True) -> Parameters:
    linears = _C * _Q_RANK + _Q_RANK * _HEADS * (_NOPE + _ROPE) + _C * (_KV_RANK + _ROPE)
    linears += _KV_RANK * _HEADS * (_NOPE + _V) + _HEADS * _V * _C
    other = _Q_RANK + _KV_RANK + 2 * _C
    if has_indexer:
        linears += _Q_RANK * _INDEX_HEADS * _INDEX_DIM + _C * _INDEX_DIM
        other += _C * _INDEX_HEADS + 2 * _INDEX_DIM
    return Parameters(linears=linears, other=other)


def _moe(num_experts: int) -> Parameters:
    expert = 3 * _C * _F
    return Parameters(experts=num_experts * expert, linears=expert, other=_EXPERTS * (_C + 1))


def parameters(*, active: bool = False) -> Parameters:
    """Trunk without MTP; active: per token, the head but not the embedding table."""
    total = Parameters(other=(1 if active else 2) * _VOCAB * _C + _C)
    for layer in range(_LAYERS):
        total += _attention()
        total += Parameters(linears=3 * _C * _DENSE_F) if layer < _DENSE else _moe(_PER_TOKEN if active else _EXPERTS)
    return total


def mtp_parameters() -> Parameters:
    """One MTP block as stored: it repeats embedding and head."""
    return (
        _attention(has_indexer=True) + _moe(_EXPERTS) + Parameters(linears=2 * _C * _C, other=2 * _VOCAB * _C + 3 * _C)
    )


def token_flops(context: int) -> float:
    """Absorbed latent attention: scores over 576 channels, values over 512."""
    attended = min(context, _INDEX_TOPK)
    attention = 2.0 * _HEADS * (_KV_RANK + _ROPE + _KV_RANK) * attended * _LAYERS
    indexer = 2.0 * _INDEX_HEADS * _INDEX_DIM * context * _LAYERS
    return 2.0 * parameters(active=True).total + attention + indexer


def cache_bytes(num_tokens: int, dtype: str = "fp8_e4m3") -> int:
    return num_tokens * _LAYERS * sum(CACHE_BYTES[dtype])


def checkpoint_bytes(stored: WeightBytes, mtp_stored: WeightBytes) -> float:
    """Whole checkpoint, MTP included."""
    return stored.of(parameters()) + mtp_stored.of(mtp_parameters())


#: As released: FP8 linears and experts, the rest bf16, MTP alike.
RELEASED = WeightBytes(experts=FP8, linears=FP8, other=BF16)
#: NVFP4 as model optimisers export it: routed experts in NVFP4; MTP is left in bf16, since transformers ignores it.
NVFP4_EXPERTS = WeightBytes(experts=NVFP4, linears=FP8, other=BF16)
ALL_BF16 = WeightBytes(experts=BF16, linears=BF16, other=BF16)
