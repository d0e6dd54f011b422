"""Load a model by the architecture its config names. A separate package adds one through `tokenmill.models`.

An entry is a builder: `build(checkpoint, options) -> BuiltModel`, registered under the first of the config's
`architectures` (or its `model_type`). It is imported only when a checkpoint asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.core.registry import Registry
from tokenmill.kernels.select import Choice, Kernels, select_kernels
from tokenmill.models.base import Model
from tokenmill.models.quantization.checkpoint import QuantizedCheckpoint, expand_quantized
from tokenmill.models.weights import Checkpoint, open_checkpoint

MODELS = Registry(
    "model architecture",
    "tokenmill.models",
    {
        "LlamaForCausalLM": "tokenmill.models.llama:build",
        "MistralForCausalLM": "tokenmill.models.llama:build",
        "Qwen2ForCausalLM": "tokenmill.models.llama:build",
        "Qwen3ForCausalLM": "tokenmill.models.llama:build",
        "DeepseekV4ForCausalLM": "tokenmill.models.deepseek_v4.builder:build",
    },
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """
    dtype    of weights and activations
    kernels  chosen once for the process
    extra    settings of one architecture (e.g. kv_cache_dtype); a builder refuses what it does not know
    on_progress  called with the loaded share, 0..1
    """

    dtype: torch.dtype
    kernels: Kernels
    extra: Mapping[str, str] = field(default_factory=dict)
    on_progress: Callable[[float], None] | None = None

    def refuse_extra(self, known: tuple[str, ...] = ()) -> None:
        for name in self.extra:
            if name not in known:
                possible = ", ".join(known) or "none"
                raise ConfigError(f"setting {name} means nothing to this model: possible: {possible}")


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """What a builder returns: the model and the block size it likes best (source tokens).

    kernels  what it runs on, where that is not simply the options' choice
    chat_encoding  how its messages are written (text/chat)
    """

    model: Model
    default_block_size: int
    kernels: dict[str, Choice] | None = None
    chat_encoding: str = "jinja"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """
    architecture     the config's model_type, for people
    weights_version  root of cache keys: content of the checkpoint and every setting that changes KV bytes
    kernels          op -> which implementation and why
    """

    model: Model
    architecture: str
    weights_version: str
    dtype: str
    default_block_size: int
    tokenizer_path: Path | None
    eos_token_ids: tuple[int, ...]
    kernels: dict[str, Choice]
    chat_encoding: str


def load_model(
    path: str | Path,
    *,
    dtype: str = "bfloat16",
    deterministic: bool = False,
    backend: str = "auto",
    weight_format: str = "bf16",
    extra: Mapping[str, str] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> LoadedModel:
    """Open, check and load; everything wrong with the checkpoint is a CheckpointError.

    deterministic  reference kernels: batch-invariant, float32 arithmetic
    backend, weight_format   see kernels/select.select_kernels
    extra          settings of one architecture
    on_progress    called with the loaded share, 0..1
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not possible: choose {' or '.join(DTYPES)}")
    checkpoint = expand_quantized(open_checkpoint(path))
    if isinstance(checkpoint, QuantizedCheckpoint) and weight_format != "bf16":
        raise ConfigError(f"{path} is quantised already: leave out --quantization {weight_format}")
    build = find_builder(checkpoint)
    kernels = select_kernels(
        deterministic=deterministic, dtype=DTYPES[dtype], backend=backend, weight_format=weight_format
    )
    options = LoadOptions(DTYPES[dtype], kernels, extra or {}, on_progress)
    built: BuiltModel = build(checkpoint, options)
    choices = built.kernels or kernels.choices
    fitting = {f"native_{weight_format}", "packed" if backend == "native" else f"expanded_{weight_format}"}
    if (backend == "native" or weight_format != "bf16") and choices["linear"].name not in fitting:
        raise ConfigError(
            f"{checkpoint.path}: the native kernels do not serve {architecture_of(checkpoint)} (yet): "
            "leave out --kernels and --quantization"
        )
    return LoadedModel(
        model=built.model,
        architecture=str(checkpoint.config.get("model_type", architecture_of(checkpoint))),
        weights_version=_weights_version(checkpoint, dtype, choices, options.extra),
        dtype=dtype,
        default_block_size=built.default_block_size,
        tokenizer_path=checkpoint.tokenizer_path,
        eos_token_ids=checkpoint.eos_token_ids,
        kernels=choices,
        chat_encoding=built.chat_encoding,
    )


def architecture_of(checkpoint: Checkpoint) -> str:
    names = checkpoint.config.get("architectures") or [checkpoint.config.get("model_type")]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise CheckpointError(
            f"{checkpoint.path}: config.architectures is missing or not a list of names: "
            f"possible: {', '.join(MODELS.names())}"
        )
    return names[0]


def find_builder(checkpoint: Checkpoint) -> Any:
    name = architecture_of(checkpoint)
    if name not in MODELS.names():
        raise CheckpointError(
            f"{checkpoint.path}: config.architectures[0]={name!r} is not supported: "
            f"possible: {', '.join(MODELS.names())}, or a package that registers it under tokenmill.models"
        )
    return MODELS.load(name)


def _weights_version(
    checkpoint: Checkpoint, dtype: str, choices: Mapping[str, Choice], extra: Mapping[str, str]
) -> str:
    """Kernels are part of it: blocks computed by another kernel differ in their last bits."""
    names = sorted(f"{op}={choice.name}" for op, choice in choices.items())
    settings = repr((checkpoint.digest(), dtype, names, sorted(extra.items())))
    return xxhash.xxh3_128(settings.encode()).hexdigest()
