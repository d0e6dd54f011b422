"""What a Llama-family model is: its config.json read, checked, and refused by field name. Torch-free.

One shape covers Llama 2 and 3, SmolLM2, Mistral, Qwen2 and Qwen3 (dense); they differ in biases, in norms on
queries and keys, and in which layers see only a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.kernels.rope import frequencies
from tokenmill.kernels.rope.frequencies import Rotary
from tokenmill.models.hf_config import ConfigReader

_READ = {
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "rope_theta", "rope_scaling", "rope_parameters",
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "initializer_range",
}  # fmt: skip
#: A field we do not read may be ignored only if its name does not hint at arithmetic.
_HINTS = (
    "softcap", "multiplier", "expert", "moe", "quant", "norm", "rope", "rotary", "sparse", "window", "scal", "bias",
    "lora", "alibi", "parallel", "temperature", "sink", "clip", "limit",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """
    max_model_len   positions the model is made for, tokens
    rotary          turning frequencies of the channel pairs (i, i + head_dim/2)
    layer_windows   per layer: tokens a row sees, itself included; None: all before it
    has_qk_norm     queries and keys are normalised per head before they are turned
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rotary: Rotary
    layer_windows: tuple[int | None, ...]
    is_tied: bool
    has_qkv_bias: bool
    has_o_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool

    @property
    def num_layers(self) -> int:
        return len(self.layer_windows)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_llama_config(config: dict[str, Any], source: str | Path) -> LlamaConfig:
    """CheckpointError names the field that is missing, impossible or not supported."""
    fields = ConfigReader(config, source)
    architecture = str((fields.raw("architectures") or [""])[0])
    _refuse_unknown(fields)
    fields.choice("hidden_act", ["silu"], "silu")
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        fields.fail("num_key_value_heads", f"a divisor of num_attention_heads={num_heads}")
    head_dim = fields.integer("head_dim", 128 if architecture.startswith("Qwen3") else hidden_size // num_heads)
    if head_dim % 2:
        fields.fail("head_dim", "an even number")
    max_position = fields.integer("max_position_embeddings")
    rotary, max_model_len = _read_rotary(fields, head_dim, max_position)
    has_attention_bias = fields.boolean("attention_bias", False)
    return LlamaConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_model_len=max_model_len,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rotary=rotary,
        layer_windows=_read_windows(fields, architecture, config),
        is_tied=fields.boolean("tie_word_embeddings", False),
        has_qkv_bias=has_attention_bias or architecture.startswith("Qwen2"),
        has_o_bias=has_attention_bias,
        has_mlp_bias=fields.boolean("mlp_bias", False),
        has_qk_norm=architecture.startswith("Qwen3"),
    )


def _refuse_unknown(fields: ConfigReader) -> None:
    for name in fields.names():
        is_meaningful = any(hint in name.lower() for hint in _HINTS) and not _is_neutral(fields.raw(name))
        if name not in _READ and is_meaningful:
            fields.fail(name, "this field absent; the Llama family here does not know it")


def _is_neutral(value: Any) -> bool:
    """Switched off, empty, or a factor of one."""
    return not value or (value == 1 and value is not True)


def _read_rotary(fields: ConfigReader, head_dim: int, max_position: int) -> tuple[Rotary, int]:
    """-> (rotary, context length). The settings are `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    name = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    settings = fields.section(name)
    kind = settings.choice("rope_type" if "rope_type" in settings else "type", _ROPE_TYPES, "default")
    theta = settings.number("rope_theta", fields.number("rope_theta", 10000.0))
    settings.choice("partial_rotary_factor", [1, 1.0], 1.0)
    if kind == "default":
        return frequencies.plain(head_dim, theta), max_position
    if kind == "divisors":
        return frequencies.divided(head_dim, theta, divisors=settings.raw("divisors", [])), max_position
    factor = settings.number("factor")
    if kind == "linear":
        return frequencies.linear(head_dim, theta, factor=factor), max_position
    original = settings.integer("original_max_position_embeddings", max_position)
    if kind == "llama3":
        low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
        rotary = frequencies.llama3(
            head_dim, theta, factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_len=original
        )
        return rotary, max_position
    return _read_yarn(settings, head_dim, theta, factor, original), max(max_position, int(factor * original))


_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "divisors")  # divisors: what a GGUF stores of llama3


def _read_yarn(settings: ConfigReader, head_dim: int, theta: float, factor: float, original: int) -> Rotary:
    magnitude = settings.number("attention_factor") if "attention_factor" in settings else None
    if magnitude is None and "mscale" in settings and "mscale_all_dim" in settings:
        above = frequencies.yarn_magnitude(factor, settings.number("mscale"))
        magnitude = above / frequencies.yarn_magnitude(factor, settings.number("mscale_all_dim"))
    return frequencies.yarn(
        head_dim,
        theta,
        factor=factor,
        original_max_len=original,
        beta_fast=settings.number("beta_fast", 32.0),
        beta_slow=settings.number("beta_slow", 1.0),
        magnitude=magnitude,
        truncate=settings.boolean("truncate", True),
    )


def _read_windows(fields: ConfigReader, architecture: str, config: dict[str, Any]) -> tuple[int | None, ...]:
    num_layers = fields.integer("num_hidden_layers")
    if architecture.startswith("Mistral"):
        # Mistral's config class fills in 4096 where the field is absent; null means no window.
        window = fields.integer("sliding_window") if "sliding_window" in fields else None
        return (window if "sliding_window" in config else 4096,) * num_layers
    if not fields.boolean("use_sliding_window", False):
        types = fields.raw("layer_types", [])
        if "sliding_attention" in types and architecture.startswith("Qwen"):
            fields.fail("layer_types", "full_attention only, when use_sliding_window is false")
        return (None,) * num_layers
    window = fields.integer("sliding_window", 4096)
    default = ["full_attention"] * min(num_layers, fields.integer("max_window_layers", 28, low=0))
    types = fields.raw("layer_types", default + ["sliding_attention"] * (num_layers - len(default)))
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(types, list) or len(types) != num_layers or not all(t in known for t in types):
        fields.fail("layer_types", f"a list of {num_layers} names out of {', '.join(known)}")
    return tuple(known[t] for t in types)
