"""Build the model from a checkpoint: config checked, weights loaded and verified, caches' formats chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.select import select_kernels
from tokenmill.models.base import Model
from tokenmill.models.deepseek_v4.checkpoint import HubCheckpoint
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import DEFAULT_BLOCK_SIZE, cache_formats
from tokenmill.models.deepseek_v4.model import DeepseekV4
from tokenmill.models.deepseek_v4.native import NativeDeepseekV4, unsupported_reason
from tokenmill.models.deepseek_v4.weights import Weights, allocate, destinations
from tokenmill.models.loading import check_names, is_finite
from tokenmill.models.registry import BuiltModel, LoadOptions
from tokenmill.models.weights import Checkpoint, listed

log = logging.getLogger(__name__)

#: V4 has no chat template; its hub repository holds a program that writes messages (text/encodings).
CHAT_ENCODING = "deepseek_v4"
EXTRA = ("kv_cache_dtype", "index_cache_dtype", "mtp")


def build(checkpoint: Checkpoint, options: LoadOptions) -> BuiltModel:
    """Extra options: kv_cache_dtype, index_cache_dtype (auto or a name), mtp: auto (when present) | on | off."""
    options.refuse_extra(EXTRA)
    config = DeepseekV4Config.from_dict(checkpoint.config)
    hub = HubCheckpoint(checkpoint)
    hub.check_plain()
    num_mtp = _num_mtp(hub, config, options.extra.get("mtp", "auto"))
    formats = cache_formats(
        config,
        str(options.dtype).removeprefix("torch."),
        options.extra.get("kv_cache_dtype", "auto"),
        options.extra.get("index_cache_dtype", "auto"),
    )
    native = options.kernels.native
    reason = unsupported_reason(config)
    if native is not None and reason is None:
        kernels = options.kernels.on_native()
        weights = load_weights(hub, config, native.load_dtype, num_mtp, options.on_progress)
        model: Model = NativeDeepseekV4(config, weights, kernels, native.library, formats, options.dtype)
        return BuiltModel(model, DEFAULT_BLOCK_SIZE, kernels.choices, chat_encoding=CHAT_ENCODING)
    if native is not None:
        if native.weight_format != "bf16":
            raise ConfigError(f"{native.weight_format} weights need the native kernels; not for this model: {reason}")
        log.warning("torch kernels instead of the native ones: %s", reason)
    weights = load_weights(hub, config, options.dtype, num_mtp, options.on_progress)
    model = DeepseekV4(config, weights, options.kernels, formats, options.dtype)
    return BuiltModel(model, DEFAULT_BLOCK_SIZE, chat_encoding=CHAT_ENCODING)


def meta_model(config: DeepseekV4Config, *, num_mtp: int = 0) -> DeepseekV4:
    """A model without storage, for counting and sizing: a full-size one takes a second. It cannot be run."""
    weights = allocate(config, torch.bfloat16, num_mtp=num_mtp, device="meta")
    kernels = select_kernels(deterministic=True)  # fast kernels pack weights, which needs storage
    return DeepseekV4(config, weights, kernels, cache_formats(config, "bfloat16"), torch.bfloat16)


def load_weights(
    checkpoint: Checkpoint,
    config: DeepseekV4Config,
    dtype: torch.dtype,
    num_mtp: int,
    on_progress: Callable[[float], None] | None = None,
) -> Weights:
    """Allocate and fill; names and shapes are compared first, values are checked while they pass."""
    weights = allocate(config, dtype, num_mtp=num_mtp)
    wanted = destinations(config, weights)
    ignored = [] if num_mtp else ["mtp.*"]
    if config.tie_word_embeddings:
        ignored.append("head.weight")
    check_names(checkpoint, {name: tuple(tensor.shape) for name, tensor in wanted.items()}, ignored)
    _fill(checkpoint, wanted, on_progress)
    _check_tables(checkpoint, config, wanted)
    return weights


def _fill(checkpoint: Checkpoint, wanted: Mapping[str, Tensor], on_progress: Callable[[float], None] | None) -> None:
    total, done, broken = sum(t.numel() for t in wanted.values()), 0, []
    for name, destination in wanted.items():
        destination.copy_(checkpoint.read(name))
        checkpoint.release(name)
        if not is_finite(destination):
            broken.append(name)
        done += destination.numel()
        if on_progress is not None:
            on_progress(done / total)
    if broken:
        raise CheckpointError(
            f"{checkpoint.path} holds values that are not finite in {listed(broken)}: "
            "the file is damaged or was converted wrongly; fetch the model again"
        )


def _num_mtp(checkpoint: Checkpoint, config: DeepseekV4Config, wish: str) -> int:
    """MTP blocks to load. transformers drops them when it saves, so a config may announce what is not there."""
    has_weights = any(name.startswith("mtp.") for name in checkpoint.shapes())
    announced = config.num_nextn_predict_layers
    if wish not in ("auto", "on", "off"):
        raise ConfigError(f"setting mtp={wish!r} is not possible: choose auto, on or off")
    if wish == "off" or (wish == "auto" and not has_weights):
        return 0
    if not has_weights:
        raise CheckpointError(
            f"{checkpoint.path} has no mtp.* tensors: use mtp=auto or off, or the original checkpoint"
        )
    if not announced:
        raise CheckpointError(
            f"{checkpoint.path} has mtp.* tensors but config.json says num_nextn_predict_layers=0: "
            "correct the config, or use mtp=off"
        )
    return announced


def _check_tables(checkpoint: Checkpoint, config: DeepseekV4Config, wanted: Mapping[str, Tensor]) -> None:
    """An expert id outside the model would read foreign memory, or silently nothing."""
    for name, table in wanted.items():
        if not name.endswith(".tid2eid"):
            continue
        wrong = ((table < 0) | (table >= config.n_routed_experts)).nonzero()
        if len(wrong):
            token, slot = wrong[0].tolist()
            raise CheckpointError(
                f"{checkpoint.path}: {name}[{token}, {slot}]={int(table[token, slot])} is not an expert: "
                f"possible: 0 to {config.n_routed_experts - 1}; {len(wrong)} entries are wrong, fetch the model again"
            )
