"""Tiny random Llama checkpoints, written without transformers: for tests of everything above the models."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def tiny_llama_config(
    *,
    vocab_size: int = 256,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    intermediate_size: int = 128,
    max_model_len: int = 4096,
    **changes: object,
) -> dict[str, object]:
    """config.json of a tiny Llama; `changes` add or replace fields."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": max_model_len,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
        **changes,
    }


def llama_tensors(config: dict, *, seed: int = 0, std: float = 0.2) -> dict[str, torch.Tensor]:
    """Random weights for every tensor that `config` calls for, by Hugging Face name, float32.

    The standard deviation is large for a language model, so that greedy texts differ between prompts.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
        if config["architectures"] == ["Qwen2ForCausalLM"]:
            for name, rows in (("q", queries), ("k", keys), ("v", keys)):
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = (rows,)
        if config["architectures"] == ["Qwen3ForCausalLM"]:
            shapes |= {f"{layer}.self_attn.{name}_norm.weight": (dim,) for name in ("q", "k")}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return {
        name: torch.randn(shape, generator=generator) * std + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def write_tiny_llama(path: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **settings: object) -> Path:
    """Write config.json and model.safetensors into folder `path` (made when absent); returns `path`.

    settings  see `tiny_llama_config`
    """
    path.mkdir(parents=True, exist_ok=True)
    config = tiny_llama_config(**settings)  # type: ignore[arg-type]
    (path / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.to(dtype) for name, tensor in llama_tensors(config, seed=seed).items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path
