"""DeepSeek V4's config.json as one checked, frozen object; torch-free. Not responsible for weights or caches.

Two spellings are read: the hub's (compress_ratios, num_hash_layers, rope_scaling) and the one that Hugging Face's
`save_pretrained` writes (layer_types, compress_rates, mlp_layer_types, rope_parameters).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tokenmill.core.errors import CheckpointError

#: Ratio -> kind of attention layer. Every ratio divides the 128-token logical block, see groups.py.
SUPPORTED_RATIOS = (0, 4, 32, 64, 128)
CSA_RATIO = 4


class AttentionKind(StrEnum):
    SLIDING = "sliding_attention"
    CSA = "compressed_sparse_attention"
    HCA = "heavily_compressed_attention"


def kind_of_ratio(ratio: int) -> AttentionKind:
    if ratio == 0:
        return AttentionKind.SLIDING
    return AttentionKind.CSA if ratio == CSA_RATIO else AttentionKind.HCA


@dataclass(frozen=True, slots=True)
class Yarn:
    factor: float
    original_max_len: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV4Config:
    """Fields keep the checkpoint's names; `compress_ratios` and `hash_layers` have one entry per trunk layer.

    num_nextn_predict_layers  MTP blocks the config announces; whether weights exist is found out at load
    block_quantised           linear weights are FP8 in 128x128 blocks (quantization_config)
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    hash_layers: tuple[bool, ...]
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    max_position_embeddings: int
    num_nextn_predict_layers: int
    tie_word_embeddings: bool
    block_quantised: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @property
    def nope_head_dim(self) -> int:
        return self.head_dim - self.qk_rope_head_dim

    def layers_of(self, kind: AttentionKind) -> tuple[int, ...]:
        """Trunk layers of one kind, ascending."""
        return tuple(i for i, ratio in enumerate(self.compress_ratios) if kind_of_ratio(ratio) is kind)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeepseekV4Config:
        """Check a parsed config.json; CheckpointError names the first field that cannot be served."""
        return _parse(_Fields(data))


class _Fields:
    """Typed access to a config.json; every complaint names the field's path."""

    def __init__(self, data: Mapping[str, Any], path: str = "config.json: ") -> None:
        self._data = data
        self._path = path

    def get(self, name: str) -> Any:
        return self._data.get(name)

    def fail(self, name: str, possible: str) -> CheckpointError:
        value = f"={self._data[name]!r}" if name in self._data else " is missing"
        return CheckpointError(f"{self._path}{name}{value}: {possible}")

    def integer(self, name: str, *, low: int = 1, high: int | None = None, default: int | None = None) -> int:
        value = self._data.get(name, default)
        upper = "" if high is None else f" to {high}"
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise self.fail(name, f"an integer from {low}{upper} is needed")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        value = self._data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fail(name, "a positive number is needed")
        return float(value)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a field that is present with a value this implementation does not serve."""
        if name in self._data and self._data[name] not in allowed:
            raise self.fail(name, f"only {' or '.join(repr(a) for a in allowed)} is supported")

    def section(self, name: str) -> _Fields | None:
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(name, "a mapping is needed")
        return _Fields(value, f"{self._path}{name}.")


def _parse(fields: _Fields) -> DeepseekV4Config:
    _refuse_options(fields)
    num_layers = fields.integer("num_hidden_layers")
    num_mtp = fields.integer("num_nextn_predict_layers", low=0, default=0)
    head_dim = fields.integer("head_dim", low=2)
    rope_dim = _rope_dim(fields, head_dim)
    num_heads = fields.integer("num_attention_heads")
    num_experts = fields.integer("n_routed_experts")
    ratios = _compress_ratios(fields, num_layers, num_mtp)
    o_groups = fields.integer("o_groups")
    if num_heads % o_groups:
        raise fields.fail("o_groups", f"it must divide num_attention_heads={num_heads}")
    main_theta, compress_theta, yarn = _ropes(fields)
    has_csa = CSA_RATIO in ratios
    return DeepseekV4Config(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        head_dim=head_dim,
        qk_rope_head_dim=rope_dim,
        q_lora_rank=fields.integer("q_lora_rank"),
        o_groups=o_groups,
        o_lora_rank=fields.integer("o_lora_rank"),
        sliding_window=fields.integer("sliding_window"),
        compress_ratios=ratios,
        index_n_heads=fields.integer("index_n_heads", default=None if has_csa else 1),
        index_head_dim=fields.integer("index_head_dim", low=rope_dim, default=None if has_csa else rope_dim),
        index_topk=fields.integer("index_topk", default=None if has_csa else 1),
        n_routed_experts=num_experts,
        num_experts_per_tok=fields.integer("num_experts_per_tok", high=num_experts),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        hash_layers=_hash_layers(fields, num_layers),
        routed_scaling_factor=fields.number("routed_scaling_factor"),
        swiglu_limit=fields.number("swiglu_limit"),
        hc_mult=fields.integer("hc_mult"),
        hc_sinkhorn_iters=fields.integer("hc_sinkhorn_iters"),
        hc_eps=fields.number("hc_eps"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=main_theta,
        compress_rope_theta=compress_theta,
        yarn=yarn,
        max_position_embeddings=fields.integer("max_position_embeddings", low=2),
        num_nextn_predict_layers=num_mtp,
        tie_word_embeddings=bool(fields.get("tie_word_embeddings")),
        block_quantised=_is_block_quantised(fields),
        eos_token_ids=_token_ids(fields.get("eos_token_id")),
        bos_token_id=fields.get("bos_token_id"),
    )


def _refuse_options(fields: _Fields) -> None:
    """Variants that other DeepSeek models use and that would be computed wrongly if ignored."""
    fields.only("model_type", "deepseek_v4")
    fields.only("hidden_act", "silu")
    fields.only("attention_bias", False)
    fields.only("mlp_bias", False)
    fields.only("num_key_value_heads", 1)
    fields.only("n_shared_experts", 1)
    fields.only("scoring_func", "sqrtsoftplus")
    fields.only("topk_method", "noaux_tc")
    fields.only("norm_topk_prob", True)
    fields.only("n_group", None, 1)
    fields.only("topk_group", None, 1)
    fields.only("expert_dtype", None, "fp4", "fp8")


def _rope_dim(fields: _Fields, head_dim: int) -> int:
    if fields.get("qk_rope_head_dim") is None and fields.get("partial_rotary_factor") is not None:
        rope_dim = int(head_dim * fields.number("partial_rotary_factor"))
    else:
        rope_dim = fields.integer("qk_rope_head_dim", low=2, high=head_dim)
    if rope_dim % 2:
        raise fields.fail("qk_rope_head_dim", "channels are turned in pairs, an even number is needed")
    return rope_dim


def _compress_ratios(fields: _Fields, num_layers: int, num_mtp: int) -> tuple[int, ...]:
    """One ratio per trunk layer. The hub's list goes on with one entry per MTP block, which must be 0."""
    if fields.get("compress_ratios") is None:
        return _ratios_of_types(fields, num_layers)
    ratios = fields.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) not in (num_layers, num_layers + num_mtp):
        length = len(ratios) if isinstance(ratios, list) else "no"
        raise CheckpointError(
            f"config.json: compress_ratios has {length} entries: num_hidden_layers={num_layers} are needed, "
            f"or {num_layers + num_mtp} with the MTP blocks"
        )
    for i, ratio in enumerate(ratios):
        allowed = SUPPORTED_RATIOS if i < num_layers else (0,)
        if ratio not in allowed or isinstance(ratio, bool):
            raise CheckpointError(
                f"config.json: compress_ratios[{i}]={ratio!r} is not supported: "
                f"{'trunk layers' if i < num_layers else 'MTP blocks'} can have {', '.join(map(str, allowed))}"
            )
    return tuple(ratios[:num_layers])


def _ratios_of_types(fields: _Fields, num_layers: int) -> tuple[int, ...]:
    types = fields.get("layer_types")
    if not isinstance(types, list) or len(types) != num_layers:
        length = f"has {len(types)} entries" if isinstance(types, list) else "is missing, as is compress_ratios"
        raise CheckpointError(f"config.json: layer_types {length}: num_hidden_layers={num_layers} are needed")
    ratio_of = {AttentionKind.SLIDING.value: 0, **_compress_rates(fields)}
    for i, name in enumerate(types):
        if name not in ratio_of:
            raise CheckpointError(
                f"config.json: layer_types[{i}]={name!r} is an unknown attention kind: possible are "
                f"{', '.join(kind.value for kind in AttentionKind)}"
            )
    return tuple(ratio_of[name] for name in types)


def _compress_rates(fields: _Fields) -> dict[str, int]:
    rates = fields.section("compress_rates") or _Fields({}, "config.json: compress_rates.")
    csa = rates.integer(AttentionKind.CSA, default=CSA_RATIO)
    if csa != CSA_RATIO:
        raise rates.fail(AttentionKind.CSA, f"only {CSA_RATIO} is supported")
    hca = rates.integer(AttentionKind.HCA, default=128)
    if hca not in SUPPORTED_RATIOS[2:]:
        raise rates.fail(AttentionKind.HCA, f"only {', '.join(map(str, SUPPORTED_RATIOS[2:]))} are supported")
    return {AttentionKind.CSA.value: csa, AttentionKind.HCA.value: hca}


def _hash_layers(fields: _Fields, num_layers: int) -> tuple[bool, ...]:
    types = fields.get("mlp_layer_types")
    if types is None:
        num_hash = fields.integer("num_hash_layers", low=0, high=num_layers)
        return tuple(i < num_hash for i in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers:
        raise CheckpointError(
            f"config.json: mlp_layer_types has {len(types) if isinstance(types, list) else 'no'} entries: "
            f"num_hidden_layers={num_layers} are needed"
        )
    for i, name in enumerate(types):
        if name not in ("hash_moe", "moe"):
            raise CheckpointError(f"config.json: mlp_layer_types[{i}]={name!r}: possible are 'hash_moe', 'moe'")
    return tuple(name == "hash_moe" for name in types)


_YARN_KEYS = {"type", "rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
              "attention_factor", "rope_theta", "partial_rotary_factor"}  # fmt: skip


def _ropes(fields: _Fields) -> tuple[float, float, Yarn | None]:
    """(theta of sliding layers, theta of compressed layers, their YaRN); nothing is taken from code defaults."""
    nested = fields.section("rope_parameters")
    if nested is not None and nested.get("main") is not None:
        main, compress = nested.section("main"), nested.section("compress")
        if main is None or compress is None:
            raise fields.fail("rope_parameters", "both 'main' and 'compress' are needed")
        main.only("rope_type", "default")
        return main.number("rope_theta"), compress.number("rope_theta"), _yarn(compress)
    scaling = fields.section("rope_scaling") or nested
    yarn = None if scaling is None else _yarn(scaling)
    return fields.number("rope_theta"), fields.number("compress_rope_theta"), yarn


def _yarn(fields: _Fields) -> Yarn | None:
    for name in fields._data:
        if name not in _YARN_KEYS:
            raise fields.fail(name, f"unknown rope option; possible are {', '.join(sorted(_YARN_KEYS))}")
    fields.only("type", "yarn", "default")
    fields.only("rope_type", "yarn", "default")
    # cos and sin of V4 carry no YaRN temperature (specification section 5).
    fields.only("attention_factor", None, 1)
    if "yarn" not in (fields.get("type"), fields.get("rope_type")):
        return None
    return Yarn(
        factor=fields.number("factor"),
        original_max_len=fields.integer("original_max_position_embeddings"),
        beta_fast=fields.number("beta_fast", default=32),
        beta_slow=fields.number("beta_slow", default=1),
    )


def _is_block_quantised(fields: _Fields) -> bool:
    quant = fields.section("quantization_config")
    if quant is None:
        return False
    if quant.get("quant_method") != "fp8":
        raise quant.fail("quant_method", "only 'fp8' (e4m3 blocks, experts optionally fp4) is known")
    if quant.get("weight_block_size") != [128, 128]:
        raise quant.fail("weight_block_size", "only [128, 128] is known")
    quant.only("fmt", "e4m3")
    quant.only("scale_fmt", None, "ue8m0")
    quant.only("quant_algo", None)  # NVFP4 re-quantisations announce themselves here
    quant.only("moe_quant_algo", None)
    quant.only("expert_dtype", None, "fp4", "fp8")
    return True


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
