"""DeepSeek V3, R1 and V3.2 in numbers, the models that V4 is measured against; torch-free. Sized here, not served.

Source: config.json of deepseek-ai/DeepSeek-V3.2-Exp and the DeepSeek-V3 report (arXiv 2412.19437): latent
attention with 512 + 64 cached channels, and since V3.2 an indexer of 64 heads x 128 that keeps 2048 tokens.
"""

from __future__ import annotations

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import KeyRead, WorkDescription
from tokenmill.models.deepseek_v4.work import BF16, FP8, NVFP4, Parameters, WeightBytes

_C, _LAYERS, _DENSE, _HEADS, _VOCAB = 7168, 61, 3, 128, 129280
_Q_RANK, _KV_RANK, _NOPE, _ROPE, _V = 1536, 512, 128, 64, 128
_EXPERTS, _PER_TOKEN, _F, _DENSE_F = 256, 8, 2048, 18432
_INDEX_HEADS, _INDEX_DIM, _INDEX_TOPK = 64, 128, 2048

#: Launches of a layer. Attention: norm, a-projections, norms, q_b, absorb, rope and write, attention, un-absorb, o;
#: experts: norm, gate, top-k, permute, two products, activation, combine; shared expert: two products, activation;
#: four quantisations of activations. Indexer: two projections, rope with quantisation, scores, top-k.
_OPS, _INDEX_OPS = 24, 5

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


def parameters(*, active: bool = False, has_indexer: bool = True) -> Parameters:
    """Trunk without MTP; active: per token, the head but not the embedding table."""
    total = Parameters(other=(1 if active else 2) * _VOCAB * _C + _C)
    for layer in range(_LAYERS):
        total += _attention(has_indexer=has_indexer)
        total += Parameters(linears=3 * _C * _DENSE_F) if layer < _DENSE else _moe(_PER_TOKEN if active else _EXPERTS)
    return total


def mtp_parameters(*, active: bool = False) -> Parameters:
    """One MTP block as stored: it repeats embedding and head (active: the head counts)."""
    tables = (1 if active else 2) * _VOCAB * _C
    experts = _moe(_PER_TOKEN if active else _EXPERTS)
    return _attention() + experts + Parameters(linears=2 * _C * _C, other=tables + 3 * _C)


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


def describe(precision: str = "fp8", *, name: str = "deepseek-v3.2") -> WorkDescription:
    """For pricing. R1 and V3 are alike: no indexer, every cached row is attended.

    precision  fp8 as released, fp4 with NVFP4 experts, bf16; caches in FP8, in bf16 with bf16
    """
    has_indexer = name == "deepseek-v3.2"
    stored = {"fp8": RELEASED, "fp4": NVFP4_EXPERTS, "bf16": ALL_BF16}.get(precision)
    if stored is None:
        raise ConfigError(f"precision {precision!r} is not possible for {name}: choose bf16, fp8 or fp4")
    whole, active = parameters(has_indexer=has_indexer), parameters(active=True, has_indexer=has_indexer)
    table = _VOCAB * _C
    dense = Parameters(linears=active.linears, other=active.other - table)
    cache = "bf16" if precision == "bf16" else "fp8_e4m3"
    row, key = CACHE_BYTES[cache] if has_indexer else ((_KV_RANK + _ROPE) * (2 if cache == "bf16" else 1), 0)
    return WorkDescription(
        name=name,
        num_layers=_LAYERS,
        hidden_size=_C,
        vocab_size=_VOCAB,
        dense_params=dense.total,
        dense_bytes=stored.of(dense),
        head_params=table,
        head_bytes=stored.other * table,
        embedding_bytes=stored.other * table,
        keys=_keys(row, key),
        kv_bytes_per_token=_LAYERS * (row + key),
        num_moe_layers=_LAYERS - _DENSE,
        num_experts=_EXPERTS,
        experts_per_token=_PER_TOKEN,
        expert_params=3 * _C * _F,
        expert_bytes=stored.experts * whole.experts,
        dense_dtype="bf16" if precision == "bf16" else "fp8",
        expert_dtype=precision,
        draft_params=mtp_parameters(active=True).total,
        draft_bytes=stored.of(mtp_parameters()),
        ops_per_layer=_OPS + (_INDEX_OPS if has_indexer else 0),
        max_model_len=163840,
    )


def _keys(row_bytes: int, index_bytes: int) -> tuple[KeyRead, ...]:
    """Decode: absorbed, over the latent row; prompts: plain heads of 192 and 128 channels, as engines do."""
    decode = 2.0 * _HEADS * (_KV_RANK + _ROPE + _KV_RANK) * _LAYERS
    plain = 2.0 * _HEADS * (_NOPE + _ROPE + _V) * _LAYERS
    if not index_bytes:
        return (KeyRead(decode, row_bytes * _LAYERS, prefill_flops_per_key=plain),)
    scored = KeyRead(2.0 * _INDEX_HEADS * _INDEX_DIM * _LAYERS, index_bytes * _LAYERS)
    return (KeyRead(decode, row_bytes * _LAYERS, most_keys=_INDEX_TOPK), scored)
