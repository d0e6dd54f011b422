"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen3 (dense), driven by the checkpoint's config.

Stateless between calls: all per-sequence state is in the caches. Not responsible for: reading the config
(llama_config.py), files (weights.py), arithmetic (kernels/).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.errors import ConfigError
from tokenmill.core.work import Work
from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch, cache_shape
from tokenmill.kernels.rope.api import RotaryTable
from tokenmill.kernels.select import Kernels
from tokenmill.models import llama_weights, work
from tokenmill.models.allocate import lazy_zeros
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.features import Features
from tokenmill.models.groups import attention_groups, group_name
from tokenmill.models.llama_config import LlamaConfig, read_llama_config
from tokenmill.models.llama_native import NativeLlama, unsupported_reason
from tokenmill.models.llama_weights import LlamaLayer, LlamaWeights
from tokenmill.models.quantization.checkpoint import QuantizedCheckpoint
from tokenmill.models.registry import BuiltModel, LoadOptions
from tokenmill.models.weights import Checkpoint

log = logging.getLogger(__name__)

DEFAULT_BLOCK_SIZE = 16


def build(checkpoint: Checkpoint, options: LoadOptions) -> BuiltModel:
    """Entry of models/registry.py for every architecture of the family."""
    options.refuse_extra(("kv_cache_dtype",))
    config = read_llama_config(checkpoint.config, checkpoint.path)
    kv_dtype = options.extra.get("kv_cache_dtype", "auto")
    native = options.kernels.native
    is_packed = isinstance(checkpoint, QuantizedCheckpoint)
    if native is not None:
        reason = unsupported_reason(config)
        if reason is None:
            kernels = options.kernels.on_native()
            native_options = replace(options, kernels=kernels, dtype=native.load_dtype)
            weights = llama_weights.load(checkpoint, config, native_options)
            model = NativeLlama(config, weights, native.library, _kv_dtype(kv_dtype, ("bf16", "int8")))
            return BuiltModel(model, DEFAULT_BLOCK_SIZE, (kernels.on_packed() if is_packed else kernels).choices)
        log.warning("torch kernels instead of the native ones: %s", reason)
    _kv_dtype(kv_dtype, ("bf16" if options.dtype == torch.bfloat16 else "fp32",))
    weights = llama_weights.load(checkpoint, config, options)
    choices = options.kernels.on_packed().choices if is_packed else None
    return BuiltModel(Llama(config, weights, options.kernels, options.dtype), DEFAULT_BLOCK_SIZE, choices)


def _kv_dtype(asked: str, possible: tuple[str, ...]) -> str:
    """What is asked for, or the first possible one for auto."""
    if asked not in ("auto", *possible):
        hint = "" if "int8" in possible else "; int8 needs the native kernels (bfloat16, a C compiler)"
        raise ConfigError(f"kv_cache_dtype={asked} is not possible here: choose auto or {' or '.join(possible)}{hint}")
    return possible[0] if asked == "auto" else asked


class Llama:
    """See models/base.Model."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, kernels: Kernels, dtype: torch.dtype) -> None:
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_model_len
        self.num_layers, self.hidden_size = config.num_layers, config.hidden_size
        self.num_parameters = work.num_parameters(config)
        self._weights = weights
        self._kernels = kernels
        self._dtype = dtype
        self._rotary = RotaryTable(config.rotary)
        self._specs = {window: self._spec(window) for window in config.layer_windows}

    def _spec(self, window: int | None) -> AttentionSpec:
        c = self.config
        return AttentionSpec(c.num_heads, c.num_kv_heads, c.head_dim, c.head_dim**-0.5, window)

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return attention_groups(
            self.config.layer_windows,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            block_size=block_size,
            bytes_per_value=self._dtype.itemsize,
        )

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        caches: Caches = {group_name(window): [] for window in self._specs}
        for window in self.config.layer_windows:
            shape = cache_shape(num_blocks[group_name(window)], block_size, self._specs[window])
            caches[group_name(window)].append(lazy_zeros(shape, self._dtype))
        return caches

    def forward(self, batch: ForwardBatch, caches: Caches) -> Tensor:
        """Final hidden states [T, C], normalised."""
        return self._run(batch, caches, None)

    def forward_with_features(self, batch: ForwardBatch, caches: Caches, features: Features) -> tuple[Tensor, Tensor]:
        """See base.ShowingModel; there is one stream only."""
        assert features.layers, "this model has no streams to show"
        seen: dict[int, Tensor] = dict.fromkeys(features.layers, torch.empty(0))
        hidden = self._run(batch, caches, seen)
        return hidden, torch.cat([seen[i] for i in features.layers], dim=-1)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[n] -> [n, C]"""
        return self._kernels.embedding(self._weights.embedding, token_ids)

    def _run(self, batch: ForwardBatch, caches: Caches, seen: dict[int, Tensor] | None) -> Tensor:
        """seen: filled with the residual stream after the layers that are its keys."""
        kernels, eps = self._kernels, self.config.rms_norm_eps
        cos, sin = self._rotary.rows(batch.positions)
        plans = {w: kernels.attention.plan(_paged(batch, w), spec, self._dtype) for w, spec in self._specs.items()}
        layer_caches = {window: iter(caches[group_name(window)]) for window in self._specs}
        x = kernels.embedding(self._weights.embedding, batch.token_ids)  # [T, C]
        for i, (layer, window) in enumerate(zip(self._weights.layers, self.config.layer_windows, strict=True)):
            h = kernels.rms_norm(x, layer.attention_norm, eps)
            q, k, v = self._project(layer, h, cos, sin)
            h = kernels.attention.attend(q, k, v, next(layer_caches[window]), plans[window])
            x = layer.o(h.flatten(1), add=x)
            h = layer.gate_up(kernels.rms_norm(x, layer.mlp_norm, eps))
            x = layer.down(kernels.silu_mul(h), add=x)
            if seen is not None and i in seen:
                seen[i] = x.clone()
        return kernels.rms_norm(x, self._weights.norm, eps)

    def _project(self, layer: LlamaLayer, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h [T, C] -> q [T, H, D], k and v [T, G, D]; q and k turned."""
        c = self.config
        qkv = layer.qkv(h).view(-1, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk, v = qkv[:, : -c.num_kv_heads], qkv[:, -c.num_kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = self._kernels.rms_norm(qk[:, : c.num_heads], layer.q_norm, c.rms_norm_eps)
            k = self._kernels.rms_norm(qk[:, c.num_heads :], layer.k_norm, c.rms_norm_eps)
            qk = torch.cat((q, k), dim=1)
        qk = self._kernels.rope(qk, cos, sin)
        return qk[:, : c.num_heads], qk[:, c.num_heads :], v

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self._weights.head(hidden.to(self._dtype)).float()

    def commit(self, batch: ForwardBatch, caches: Caches, num_accepted: Sequence[int]) -> None:
        """Nothing to do: rows behind the accepted ones are overwritten before they are ever read."""

    def step_work(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> Work:
        size = self._dtype.itemsize
        return work.step_work(self.config, query_lens, context_lens, bytes_per_weight=size, bytes_per_cache_value=size)


def _paged(batch: ForwardBatch, window: int | None) -> PagedBatch:
    """Rows computed again to rebuild a window group must not be written into the full group's shared blocks."""
    table = batch.tables[group_name(window)]
    return PagedBatch(
        batch.cu_seqlens,
        batch.context_lens,
        table.block_ids,
        table.first_block,
        batch.block_size,
        protected_lens=batch.protected_lens if window is None else (),
    )
