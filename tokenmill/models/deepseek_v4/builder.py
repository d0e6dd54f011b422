"""Build the model from a checkpoint: config checked, weights loaded and verified, caches' formats chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.native.build import NativeUnavailableError
from tokenmill.kernels.native.library import load_library
from tokenmill.kernels.select import Choice, select_kernels
from tokenmill.models.deepseek_v4.checkpoint import HubCheckpoint
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import DEFAULT_BLOCK_SIZE, CacheFormats, cache_formats
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
    """Extra options: kv_cache_dtype, index_cache_dtype (auto or a name); mtp: off, auto (when present) or on."""
    options.refuse_extra(EXTRA)
    config = DeepseekV4Config.from_dict(checkpoint.config)
    hub = HubCheckpoint(checkpoint)
    hub.check_plain()
    num_mtp = _num_mtp(hub, config, options.extra.get("mtp", "off"))
    formats = cache_formats(
        config,
        str(options.dtype).removeprefix("torch."),
        options.extra.get("kv_cache_dtype", "auto"),
        options.extra.get("index_cache_dtype", "auto"),
    )
    if options.kernels.weight_format != "bf16":
        raise ConfigError(
            f"{options.kernels.weight_format} weights of this model need the native kernels: choose int8, int4, nvfp4 "
            "or mxfp4, and leave out --kernels and --deterministic"
        )
    built = _build_native(hub, config, options, formats, num_mtp)
    if built is not None:
        return built
    weights = load_weights(hub, config, options.dtype, num_mtp, options.on_progress)
    model = DeepseekV4(config, weights, options.kernels, formats, options.dtype)
    return BuiltModel(model, DEFAULT_BLOCK_SIZE, chat_encoding=CHAT_ENCODING)


def _build_native(
    hub: HubCheckpoint, config: DeepseekV4Config, options: LoadOptions, formats: CacheFormats, num_mtp: int
) -> BuiltModel | None:
    """The model on the C kernels; None, with the reason logged, where they cannot be had or cannot serve it."""
    native, kernels = options.kernels.native, options.kernels
    if native is None and not (options.dtype is torch.float32 and kernels.allows_native):
        return None
    reason = unsupported_reason(config)
    try:
        library = native.library if native is not None else load_library(torch.get_num_threads())
    except NativeUnavailableError as error:
        reason = str(error)
    if reason is not None:
        if native is not None and native.weight_format != "bf16":
            raise ConfigError(f"{native.weight_format} weights need the native kernels; not for this model: {reason}")
        log.warning("torch kernels instead of the native ones: %s", reason)
        return None
    if native is not None:
        kernels, dtype = kernels.on_native(), native.load_dtype
    else:
        choice = Choice("native_fp32", f"C kernels ({library.built.isa}), float32 weights, one call per step")
        kernels, dtype = replace(kernels, choices=dict.fromkeys(kernels.choices, choice)), torch.float32
    weights = load_weights(hub, config, dtype, num_mtp, options.on_progress)
    model = NativeDeepseekV4(config, weights, kernels, library, formats, options.dtype)
    return BuiltModel(model, DEFAULT_BLOCK_SIZE, kernels.choices, chat_encoding=CHAT_ENCODING)


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
