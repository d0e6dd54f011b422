"""Tiny random DeepSeek V4 checkpoints, written without transformers, in every storage that the hub has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.fp8_block import reference as fp8_block
from tokenmill.kernels.kv_quant.reference import power_of_two_at_least
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.weights import allocate, destinations

FP8_LINEARS = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "e_proj", "h_proj", "w1", "w2", "w3")


def v4_json(**changes: Any) -> dict[str, Any]:
    """config.json of a tiny V4 with a layer of every kind; `changes` add or replace fields, None removes one."""
    config: dict[str, Any] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "q_lora_rank": 32,
        "o_groups": 2,
        "o_lora_rank": 16,
        "sliding_window": 64,
        "compress_ratios": [0, 4, 128, 4, 0],
        "index_n_heads": 8,
        "index_head_dim": 16,
        "index_topk": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "num_hash_layers": 1,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "swiglu_limit": 1.0,
        "hidden_act": "silu",
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 128,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {name: value for name, value in (config | changes).items() if value is not None}


def random_tensors(config: Mapping[str, Any], seed: int = 0, *, mtp: bool = True) -> dict[str, Tensor]:
    """float32 tensors (int64 hash tables) by hub name, sized so that every part of the model matters."""
    generator = torch.Generator().manual_seed(seed)
    parsed = DeepseekV4Config.from_dict(config)
    weights = allocate(parsed, torch.float32, num_mtp=parsed.num_nextn_predict_layers if mtp else 0)
    return {name: _draw(name, t, parsed, generator) for name, t in destinations(parsed, weights).items()}


def _draw(name: str, like: Tensor, config: DeepseekV4Config, generator: torch.Generator) -> Tensor:
    def normal(std: float, mean: float = 0.0) -> Tensor:
        return torch.randn(like.shape, generator=generator) * std + mean

    leaf = name.removesuffix(".weight").rpartition(".")[2]
    if leaf == "tid2eid":
        rows = [
            torch.randperm(config.n_routed_experts, generator=generator)[: config.num_experts_per_tok]
            for _ in range(config.vocab_size)
        ]
        return torch.stack(rows)
    if leaf == "attn_sink":
        return normal(1.5, 3.0)
    if leaf in ("kv_norm", "norm") and ".attn." in name:
        return normal(0.3, 2.0)
    if leaf.endswith("norm"):
        return normal(0.2, 1.0)
    if leaf.endswith("_scale"):
        return torch.rand(like.shape, generator=generator) + 0.5
    if leaf.endswith("_base"):
        return normal(0.7)
    if leaf in ("ape", "embed"):
        return normal(1.0)
    if leaf == "bias":
        return normal(0.3)
    gain = {"gate": 1.5, "wgate": 1.5, "wo_b": 2.0, "head": 2.0, "w1": 1.5, "w2": 1.5, "w3": 1.5}.get(leaf, 1.0)
    return normal(gain * like.shape[-1] ** -0.5)


def rounded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As the hub stores an unquantised checkpoint: bf16, with the small tensors in float32."""
    wide = ("hc_", "ape", "sink", "bias", "tid2eid")
    return {name: t if any(w in name for w in wide) else t.bfloat16() for name, t in tensors.items()}


def quantised(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As the released checkpoints: FP8 linears, FP4 experts, each with its scales; the rest as `rounded`."""
    out: dict[str, Tensor] = {}
    for name, tensor in rounded(tensors).items():
        is_linear = name.removesuffix(".weight").rpartition(".")[2] in FP8_LINEARS and "compressor" not in name
        if not is_linear:
            out[name] = tensor
        elif ".experts." in name:
            out[name], out[scale_name(name)] = quantise_fp4(tensors[name])
        else:
            out[name], out[scale_name(name)] = fp8_block.quantize(tensors[name])
    return out


def scale_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


def quantise_fp4(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.unflatten(-1, (-1, 32))
    scales = power_of_two_at_least(groups.abs().amax(-1) / 6.0)
    packed = fp4.pack(fp4.to_codes(groups / scales[..., None]).flatten(1))
    return packed.view(torch.int8), scales.to(torch.float8_e8m0fnu)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, num_shards: int = 1
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if num_shards == 1:
        save_file(contiguous, folder / "model.safetensors")
        return folder
    names, index = sorted(contiguous), {}
    for i in range(num_shards):
        file = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = names[i::num_shards]
        save_file({name: contiguous[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


# -- the names of transformers --

_TO_MODULES = [
    ("attn.indexer.compressor.", "self_attn.compressor.indexer."),
    ("attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."),
    ("attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn.q_norm.", "self_attn.q_a_norm."),
    ("attn.wq_a.", "self_attn.q_a_proj."),
    ("attn.wq_b.", "self_attn.q_b_proj."),
    ("attn.wkv.", "self_attn.kv_proj."),
    ("attn.wo_a.", "self_attn.o_a_proj."),
    ("attn.wo_b.", "self_attn.o_b_proj."),
    (".attn.", ".self_attn."),
    ("attn_norm.", "input_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("hc_attn_", "attn_hc."),
    ("hc_ffn_", "ffn_hc."),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.shared_experts.w1.", "mlp.shared_experts.gate_proj."),
    ("ffn.shared_experts.w3.", "mlp.shared_experts.up_proj."),
    ("ffn.shared_experts.w2.", "mlp.shared_experts.down_proj."),
    (".ffn.", ".mlp."),
]
_TO_COMPRESSOR = [
    (".ape", ".position_bias"),
    (".wkv.", ".kv_proj."),
    (".wgate.", ".gate_proj."),
    (".norm.", ".kv_norm."),
]
_TO_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
    "hc_head_fn": "model.hc_head.hc_fn",
    "hc_head_base": "model.hc_head.hc_base",
    "hc_head_scale": "model.hc_head.hc_scale",
}


def transformers_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of transformers' DeepseekV4ForCausalLM: module names, experts fused, MTP left out."""
    out, experts = {}, {}
    for name, tensor in tensors.items():
        if name.startswith("mtp."):
            continue
        if name in _TO_TOP:
            out[_TO_TOP[name]] = tensor
        elif ".ffn.experts." in name:
            prefix, rest = name.split(".ffn.experts.")
            number, matrix, _ = rest.split(".")
            experts.setdefault(prefix, {})[int(number), matrix] = tensor
        else:
            out[f"model.{_module_name(name)}"] = tensor
    for prefix, by_key in experts.items():
        count = 1 + max(number for number, _ in by_key)
        gate_up = [torch.cat((by_key[e, "w1"], by_key[e, "w3"])) for e in range(count)]
        out[f"model.{prefix}.mlp.experts.gate_up_proj"] = torch.stack(gate_up)
        out[f"model.{prefix}.mlp.experts.down_proj"] = torch.stack([by_key[e, "w2"] for e in range(count)])
    return out


def _module_name(name: str) -> str:
    if "compressor." in name:
        for ours, theirs in _TO_COMPRESSOR:
            name = name.replace(ours, theirs)
    for ours, theirs in _TO_MODULES:
        name = name.replace(ours, theirs)
    return name
