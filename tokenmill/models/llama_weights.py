"""The parameters of a Llama-family model: names in the checkpoint, fused and packed for the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tokenmill.kernels.linear.api import Linear
from tokenmill.models.llama_config import LlamaConfig
from tokenmill.models.loading import Loader
from tokenmill.models.registry import LoadOptions
from tokenmill.models.weights import Checkpoint

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_NORM = "model.norm.weight"
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """
    qkv       C -> (H + 2 G) D, queries first
    gate_up   C -> 2 F, gate first
    q_norm, k_norm   [D], Qwen3 only
    """

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: Tensor  # [V, C]
    layers: tuple[LlamaLayer, ...]
    norm: Tensor  # [C]
    head: Linear  # C -> V


def shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint, by Hugging Face name."""
    wanted: dict[str, tuple[int, ...]] = {_EMBEDDING: (config.vocab_size, config.hidden_size)}
    for i in range(config.num_layers):
        wanted |= {f"model.layers.{i}.{name}": shape for name, shape in _layer_shapes(config).items()}
    wanted[_NORM] = (config.hidden_size,)
    if not config.is_tied:
        wanted[_HEAD] = (config.vocab_size, config.hidden_size)
    return wanted


def _layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    linears = {
        "self_attn.q_proj": (config.q_size, hidden, config.has_qkv_bias),
        "self_attn.k_proj": (config.kv_size, hidden, config.has_qkv_bias),
        "self_attn.v_proj": (config.kv_size, hidden, config.has_qkv_bias),
        "self_attn.o_proj": (hidden, config.q_size, config.has_o_bias),
        "mlp.gate_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.up_proj": (inner, hidden, config.has_mlp_bias),
        "mlp.down_proj": (hidden, inner, config.has_mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, (outputs, inputs, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)
    if config.has_qk_norm:
        shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    return shapes | {"post_attention_layernorm.weight": (hidden,)}


def load(checkpoint: Checkpoint, config: LlamaConfig, options: LoadOptions) -> LlamaWeights:
    """Read, fuse and pack; CheckpointError for anything that does not fit."""
    ignored = ["model.layers.*.self_attn.rotary_emb.inv_freq"] + [_HEAD] * config.is_tied
    loader = Loader(checkpoint, shapes(config), options.dtype, ignored=ignored, on_progress=options.on_progress)
    embedding = loader.tensor(_EMBEDDING)
    layers = tuple(_load_layer(loader, config, options, f"model.layers.{i}.") for i in range(config.num_layers))
    norm = loader.tensor(_NORM)
    head = options.kernels.head_linear(embedding if config.is_tied else loader.tensor(_HEAD))
    loader.finish()
    return LlamaWeights(embedding, layers, norm, head)


def _load_layer(loader: Loader, config: LlamaConfig, options: LoadOptions, prefix: str) -> LlamaLayer:
    def linear(names: tuple[str, ...], has_bias: bool) -> Linear:
        weights = [f"{prefix}{name}.weight" for name in names]
        bias = loader.stacked([f"{prefix}{name}.bias" for name in names]) if has_bias else None
        packed = loader.packed(weights, lambda parts: options.kernels.packed_linear(parts, bias))
        return packed if packed is not None else options.kernels.linear(loader.stacked(weights), bias)

    def norm(name: str) -> Tensor:
        return loader.tensor(f"{prefix}{name}.weight")

    layer = LlamaLayer(
        attention_norm=norm("input_layernorm"),
        qkv=linear(_QKV, config.has_qkv_bias),
        q_norm=norm("self_attn.q_norm") if config.has_qk_norm else None,
        k_norm=norm("self_attn.k_norm") if config.has_qk_norm else None,
        o=linear(("self_attn.o_proj",), config.has_o_bias),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=linear(_GATE_UP, config.has_mlp_bias),
        down=linear(("mlp.down_proj",), config.has_mlp_bias),
    )
    loader.trim()
    return layer
