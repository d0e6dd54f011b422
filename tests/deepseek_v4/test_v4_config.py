"""config.json of DeepSeek V4: both spellings read, everything that is not served refused by the field's path."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deepseek_v4.tiny import v4_json
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.models.deepseek_v4.config import AttentionKind, DeepseekV4Config, Yarn, kind_of_ratio
from tokenmill.models.deepseek_v4.groups import cache_formats, check_block_size
from tokenmill.models.deepseek_v4.presets import flash, pro

YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
QUANT = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SLIDING, CSA, HCA = (kind.value for kind in AttentionKind)


def test_released_configs() -> None:
    assert [len(flash().layers_of(kind)) for kind in AttentionKind] == [2, 21, 20]
    assert [len(pro().layers_of(kind)) for kind in AttentionKind] == [0, 30, 31]
    assert flash().yarn == Yarn(16, 65536, 32, 1) and flash().rope_theta == 10000
    assert flash().hash_layers[:4] == (True, True, True, False)


def test_spelling_of_save_pretrained() -> None:
    """layer_types, compress_rates, mlp_layer_types, nested rope_parameters and partial_rotary_factor."""
    hub = DeepseekV4Config.from_dict(v4_json())
    rope = {"partial_rotary_factor": 0.25}
    yarn = {"factor": 4, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1}
    saved = v4_json(
        compress_ratios=None,
        num_hash_layers=None,
        qk_rope_head_dim=None,
        rope_scaling=None,
        partial_rotary_factor=0.25,
        layer_types=[SLIDING, CSA, HCA, CSA],
        compress_rates={CSA: 4, HCA: 128},
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        rope_parameters={
            "main": {"rope_type": "default", "rope_theta": 10000, **rope},
            "compress": {"rope_type": "yarn", "rope_theta": 160000, "attention_factor": 1.0, **rope, **yarn},
        },
    )
    assert DeepseekV4Config.from_dict(saved) == hub


@pytest.mark.parametrize("ratio", [0, 4, 32, 64, 128])
def test_ratios_that_are_served(ratio: int) -> None:
    config = DeepseekV4Config.from_dict(v4_json(compress_ratios=[ratio] * 4))
    kinds = {0: AttentionKind.SLIDING, 4: AttentionKind.CSA}
    assert all(kind_of_ratio(r) is kinds.get(ratio, AttentionKind.HCA) for r in config.compress_ratios)
    check_block_size(config, 128)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"compress_ratios": [0, 4, 16, 4, 0]}, r"compress_ratios\[2\]=16 .* 0, 4, 32, 64, 128"),
    ({"compress_ratios": [0, 1, 4, 4]}, r"compress_ratios\[1\]=1 "),
    ({"compress_ratios": [0, 4, 128, 4, 4]}, r"compress_ratios\[4\]=4 .* MTP blocks can have 0"),
    ({"compress_ratios": [0, 4, 128]}, r"compress_ratios has 3 entries: num_hidden_layers=4 .* 5 with the MTP"),
    ({"compress_ratios": [0] * 6}, "compress_ratios has 6 entries"),
    ({"compress_ratios": "pro"}, "compress_ratios has no entries"),
    ({"compress_ratios": None}, "layer_types is missing"),
    ({"compress_ratios": None, "layer_types": [SLIDING, CSA, "linear_attention", CSA]}, r"layer_types\[2\]='linear_"),
    ({"compress_ratios": None, "layer_types": [SLIDING]}, "layer_types has 1 entries"),
    ({"compress_ratios": None, "layer_types": [HCA] * 4, "compress_rates": {HCA: 16}}, f"compress_rates.{HCA}=16"),
    ({"compress_ratios": None, "layer_types": [CSA] * 4, "compress_rates": {CSA: 8}}, f"compress_rates.{CSA}=8"),
    ({"mlp_layer_types": ["moe"]}, "mlp_layer_types has 1"),
    ({"mlp_layer_types": ["moe", "moe", "dense", "moe"]}, r"mlp_layer_types\[2\]='dense'"),
    ({"num_hash_layers": 5}, "num_hash_layers=5"),
    ({"model_type": "deepseek_v41"}, "model_type='deepseek_v41'"),
    ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ({"scoring_func": "sigmoid"}, "scoring_func='sigmoid'"),
    ({"topk_method": "greedy"}, "topk_method='greedy'"),
    ({"norm_topk_prob": False}, "norm_topk_prob=False"),
    ({"n_group": 8}, "n_group=8"),
    ({"n_shared_experts": 2}, "n_shared_experts=2"),
    ({"num_key_value_heads": 4}, "num_key_value_heads=4"),
    ({"attention_bias": True}, "attention_bias=True"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": 0}, "hidden_size=0"),
    ({"hidden_size": True}, "hidden_size=True"),
    ({"swiglu_limit": None}, "swiglu_limit is missing"),
    ({"swiglu_limit": float("nan")}, "swiglu_limit=nan"),
    ({"num_experts_per_tok": 9}, "num_experts_per_tok=9: an integer from 1 to 8"),
    ({"o_groups": 3}, "o_groups=3: it must divide num_attention_heads=4"),
    ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7"),
    ({"qk_rope_head_dim": 40}, "qk_rope_head_dim=40"),
    ({"index_head_dim": 4}, "index_head_dim=4"),
    ({"index_topk": None}, "index_topk is missing"),
    ({"rope_theta": None}, "rope_theta is missing"),
    ({"compress_rope_theta": None}, "compress_rope_theta is missing"),
    ({"rope_scaling": {**YARN, "type": "llama3"}}, r"rope_scaling.type='llama3'"),
    ({"rope_scaling": {**YARN, "mscale": 0.7}}, r"rope_scaling.mscale=0.7"),
    ({"rope_scaling": {**YARN, "attention_factor": 1.277}}, r"rope_scaling.attention_factor=1.277"),
    ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling.original_max_position_embeddings is missing"),
    ({"rope_scaling": 4}, "rope_scaling=4"),
    ({"rope_parameters": {"main": {"rope_theta": 1e4}}}, "rope_parameters="),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method='awq'"),
    ({"quantization_config": {**QUANT, "weight_block_size": [64, 64]}}, "quantization_config.weight_block_size"),
    ({"quantization_config": {**QUANT, "fmt": "e5m2"}}, "quantization_config.fmt='e5m2'"),
    ({"quantization_config": {**QUANT, "moe_quant_algo": "NVFP4"}}, "quantization_config.moe_quant_algo='NVFP4'"),
    ({"expert_dtype": "int4"}, "expert_dtype='int4'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_what_is_not_served_is_refused_by_path(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: {message}"):
        DeepseekV4Config.from_dict(v4_json(**changes))


def test_block_sizes_and_formats() -> None:
    config = DeepseekV4Config.from_dict(v4_json(index_head_dim=17))
    with pytest.raises(ConfigError, match=r"block_size=64 does not fit compress_ratios \[4, 128\]"):
        check_block_size(config, 64)
    check_block_size(config, 256)
    with pytest.raises(ConfigError, match="fp4 needs an even index_head_dim"):
        cache_formats(config, "float32", index="fp4")
    with pytest.raises(ConfigError, match="kv_cache_dtype='int8' is not possible: choose from fp32, bf16, fp8_e4m3"):
        cache_formats(config, "float32", kv="int8")
    with pytest.raises(ConfigError, match="index_cache_dtype='nf4'"):
        cache_formats(config, "float32", index="nf4")
