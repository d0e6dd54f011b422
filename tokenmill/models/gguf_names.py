"""GGUF's metadata and tensor names of the Llama family, said in Hugging Face words. Torch-free.

Key names: ggml-org/ggml, docs/gguf.md, and the `gguf` package's constants. Not responsible for: reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.core.errors import CheckpointError

#: general.architecture -> (model_type, architectures[0], whether q and k rows are stored pair by pair)
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM", True),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", False),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", False),
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
#: Settings that change the arithmetic in ways that this family does not have.
_FOREIGN = (
    "expert_count", "logit_scale", "residual_scale", "embedding_scale", "attention.scale", "attention.clamp_kqv",
    "attention.sliding_window", "attention.max_alibi_bias", "attn_logit_softcapping", "final_logit_softcapping",
    "rope.scaling.attn_factor", "rope.scaling.alpha", "use_parallel_residual",
)  # fmt: skip


def hf_name(name: str) -> str:
    """'blk.3.attn_q.weight' -> 'model.layers.3.self_attn.q_proj.weight'; an unknown name stays as it is."""
    stem, _, leaf = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{leaf}"
    head, _, layer_and_part = stem.partition(".")
    layer, _, part = layer_and_part.partition(".")
    if head == "blk" and layer.isdecimal() and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{leaf}"
    return name


def read_architecture(metadata: Mapping[str, Any], path: Path) -> str:
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{path}: general.architecture={name!r} is not supported: possible: {', '.join(ARCHITECTURES)}"
        )
    return str(name)


def hf_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_divisors: list[float] | None,
    path: Path,
) -> dict[str, Any]:
    """config.json of this file.

    shapes          of its tensors, by Hugging Face name
    rope_divisors   content of rope_freqs.weight (Llama 3's scaling), None when absent
    """
    architecture = read_architecture(metadata, path)
    fields = _Fields(metadata, architecture, path)
    fields.refuse_foreign()
    model_type, class_name, _ = ARCHITECTURES[architecture]
    hidden_size, num_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
    fields.must_equal("attention.value_length", head_dim)
    fields.must_equal("rope.dimension_count", head_dim)
    embedding = shapes.get("model.embed_tokens.weight", (0,))
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": fields.integer("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.integer("context_length"),
        "rms_norm_eps": fields.value("attention.layer_norm_rms_epsilon", 1e-5),
        "vocab_size": embedding[0],
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "attention_bias": architecture != "qwen2" and "model.layers.0.self_attn.q_proj.bias" in shapes,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in shapes,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(eos_token_ids(metadata)),
        "rope_parameters": fields.rope(rope_divisors),
    }


def eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """End of sequence, and end of turn where a chat model has one of its own."""
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return tuple(dict.fromkeys(int(metadata[name]) for name in names if name in metadata))


class _Fields:
    """The keys of one architecture, with complaints that name the whole key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, path: Path) -> None:
        self._metadata, self._architecture, self._path = metadata, architecture, path

    def value(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self._architecture}.{name}", default)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self._refuse(name, value, "one integer")
        return int(value)

    def must_equal(self, name: str, wanted: int) -> None:
        if self.value(name, wanted) != wanted:
            self._refuse(name, self.value(name), f"{wanted}, the head size")

    def refuse_foreign(self) -> None:
        for name in _FOREIGN:
            if self.value(name):
                self._refuse(name, self.value(name), "absent; the Llama family here does not know it")

    def rope(self, divisors: list[float] | None) -> dict[str, Any]:
        settings: dict[str, Any] = {"rope_theta": self.value("rope.freq_base", 10000.0)}
        kind = self.value("rope.scaling.type", "linear" if self.value("rope.scale_linear") else "none")
        if divisors is not None:
            return settings | {"rope_type": "divisors", "divisors": divisors}
        if kind == "none":
            return settings | {"rope_type": "default"}
        if kind not in ("linear", "yarn"):
            self._refuse("rope.scaling.type", kind, "none, linear, yarn")
        factor = self.value("rope.scaling.factor", self.value("rope.scale_linear", 1.0))
        settings |= {"rope_type": kind, "factor": factor}
        keys = {
            "original_max_position_embeddings": "rope.scaling.original_context_length",
            "beta_fast": "rope.scaling.yarn_beta_fast",
            "beta_slow": "rope.scaling.yarn_beta_slow",
        }
        return settings | {name: self.value(key) for name, key in keys.items() if kind == "yarn" and self.value(key)}

    def _refuse(self, name: str, value: Any, possible: str) -> None:
        raise CheckpointError(
            f"{self._path}: {self._architecture}.{name}={value!r} is not supported: possible: {possible}"
        )
