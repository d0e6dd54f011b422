"""The Llama family on the C kernels: a whole step is one call (kernels/native/csrc/llama.c).

Same weights object, cache groups and answers as models/llama.Llama; only the layout of the cache tensors differs.
Not responsible for: the arithmetic (C), choosing this path (kernels/select).
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.work import Work
from tokenmill.kernels.native.library import KV_FORMATS, LayerStruct, Library, LlamaStruct, StepStruct
from tokenmill.kernels.native.linear import Activations, NativeLinear
from tokenmill.kernels.rope.api import RotaryTable
from tokenmill.models import work
from tokenmill.models.allocate import lazy_zeros
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.groups import attention_groups, group_name
from tokenmill.models.llama_config import LlamaConfig
from tokenmill.models.llama_weights import LlamaLayer, LlamaWeights

_LANES = 16  # tokens per cache group of the kernels
_UNIT_QUERIES = 48  # query rows that share keys (csrc/attention.c)
_GROUP = group_name(None)
_LOG2_E = 1.4426950408889634


def unsupported_reason(config: LlamaConfig) -> str | None:
    """Why the C kernels cannot serve this model, or None."""
    if config.head_dim % _LANES:
        return f"head_dim {config.head_dim} is not a multiple of {_LANES}"
    if any(window is not None for window in config.layer_windows):
        return "layers with a sliding window keep their rows in a cache group of their own"
    if config.hidden_size % _LANES or config.intermediate_size % _LANES:
        return f"hidden or intermediate size is not a multiple of {_LANES}"
    return None


@dataclass(frozen=True, slots=True)
class _StepPlan:
    """
    slots    [T] int64, where each row's key and value go
    units    [U, 4] int64 (`_units`)
    tables   [B, n] int64, groups of 16 tokens in order
    """

    slots: np.ndarray
    units: np.ndarray
    tables: np.ndarray


class NativeLlama:
    """See models/base.Model. The residual stream and norms are float32.

    kv_dtype   of KV rows: bf16, or int8 with a scale per token and kv head
    """

    def __init__(self, config: LlamaConfig, weights: LlamaWeights, library: Library, kv_dtype: str = "bf16") -> None:
        self.config = config
        self._kv_dtype = kv_dtype
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_model_len
        self.num_parameters = work.num_parameters(config)
        self._library = library
        self._embedding = weights.embedding.bfloat16()  # [V, C]
        self._weights = replace(weights, embedding=self._embedding)  # the float32 original may go
        self._keep: list[Tensor] = []  # float32 norms that the structures point into
        self._cos, self._sin = RotaryTable(config.rotary).rows(torch.arange(config.max_model_len))
        self._layers = (LayerStruct * config.num_layers)(*map(self._layer_struct, weights.layers))
        self._model = self._model_struct()
        self._caches: Caches | None = None
        self._scratch_rows = 0

    # -- structures --

    def _pin(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._keep.append(tensor.float().contiguous())
        return self._keep[-1].data_ptr()

    def _layer_struct(self, layer: LlamaLayer) -> LayerStruct:
        return LayerStruct(
            attn_norm=self._pin(layer.attention_norm),
            ffn_norm=self._pin(layer.mlp_norm),
            q_norm=self._pin(layer.q_norm),
            k_norm=self._pin(layer.k_norm),
            qkv=_native(layer.qkv).struct(),
            o=_native(layer.o).struct("add"),
            gate_up=_native(layer.gate_up).struct(),
            down=_native(layer.down).struct("add"),
        )

    def _model_struct(self) -> LlamaStruct:
        c = self.config
        per_kv_head = c.num_heads // c.num_kv_heads
        return LlamaStruct(
            num_layers=c.num_layers,
            hidden=c.hidden_size,
            inner=c.intermediate_size,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            heads_per_unit=max(n for n in range(1, _UNIT_QUERIES + 1) if per_kv_head % n == 0),
            kv_format=KV_FORMATS[self._kv_dtype],
            eps=c.rms_norm_eps,
            q_scale=c.head_dim**-0.5 * _LOG2_E,
            embed=self._embedding.data_ptr(),
            final_norm=self._pin(self._weights.norm),
            cos=self._cos.data_ptr(),
            sin=self._sin.data_ptr(),
            layers=addressof(self._layers),
            head=_native(self._weights.head).struct(),
            vocab=c.vocab_size,
        )

    def _reserve_scratch(self, rows: int) -> None:
        """Buffers for the largest step so far; the structure points into them."""
        if rows <= self._scratch_rows:
            return
        c = self.config
        qkv = c.q_size + 2 * c.kv_size
        layer = self._weights.layers[0]
        inputs = max(_native(linear).packed.inputs for linear in (layer.down, layer.o, self._weights.head))
        self._act = Activations("bf16", rows, inputs)  # the widest format
        self._x = torch.empty(rows, c.hidden_size)
        self._wide = torch.empty(rows, max(qkv, 2 * c.intermediate_size))
        self._mixed = torch.empty(rows, c.q_size)
        self._q = torch.empty(rows, c.q_size, dtype=torch.bfloat16)
        m = self._model
        m.x, m.wide, m.mixed, m.q = (t.data_ptr() for t in (self._x, self._wide, self._mixed, self._q))
        m.act, m.act_scale, m.act_offsets = self._act.pointers
        self._scratch_rows = rows

    # -- the seam --

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return attention_groups(
            self.config.layer_windows,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self._row_bytes,
            block_size=block_size,
            bytes_per_value=1,
        )

    @property
    def _row_bytes(self) -> int:
        """Of one token's key, or value, in one kv head."""
        return 2 * self.config.head_dim if self._kv_dtype == "bf16" else self.config.head_dim + 4

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        """Per layer a key and a value tensor [blocks, block/16, G, 16 row bytes] uint8 (layout inside: rows.c)."""
        assert block_size % _LANES == 0, f"block size {block_size} is not a multiple of {_LANES}"
        c = self.config
        shape = (num_blocks[_GROUP], block_size // _LANES, c.num_kv_heads, _LANES * self._row_bytes)
        tensors = []
        for layer in self._layers:
            keys, values = (lazy_zeros(shape, torch.uint8) for _ in range(2))
            layer.k_cache, layer.v_cache = keys.data_ptr(), values.data_ptr()
            tensors += [keys, values]
        self._caches = {_GROUP: tensors}
        return self._caches

    def forward(self, batch: ForwardBatch, caches: Caches) -> Tensor:
        """Residual stream [T, C] float32 before the final norm (compute_logits applies it)."""
        assert caches is self._caches, "the C structures point into the caches that were allocated last"
        rows = batch.num_tokens
        self._reserve_scratch(rows)
        hidden = torch.empty(rows, self.config.hidden_size)
        plan = self._step_plan(batch)
        step = StepStruct(
            rows, len(plan.units), plan.tables.shape[1], batch.token_ids.data_ptr(), batch.positions.data_ptr(),
            plan.slots.ctypes.data, plan.units.ctypes.data, plan.tables.ctypes.data, hidden.data_ptr(),
        )  # fmt: skip
        self._library.llama_step(byref(self._model), byref(step))
        return hidden

    def _step_plan(self, batch: ForwardBatch) -> _StepPlan:
        """In numpy: a torch call costs several times as much on arrays of this size."""
        table = batch.tables[_GROUP].block_ids.numpy()
        ends, context = np.array(batch.cu_seqlens), np.array(batch.context_lens)
        lens = ends[1:] - ends[:-1]
        positions, sequence = batch.positions.numpy(), np.repeat(np.arange(batch.num_seqs), lens)
        slots = table[sequence, positions // batch.block_size] * batch.block_size + positions % batch.block_size
        per_unit = max(1, _UNIT_QUERIES // self._model.heads_per_unit)
        units = _units(ends[:-1], lens, context, per_unit)
        return _StepPlan(slots, units, _lane_groups(table, batch.block_size))

    def compute_logits(self, hidden: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        rows = hidden.shape[0]
        self._reserve_scratch(rows)
        logits = torch.empty(rows, self.vocab_size)
        self._library.llama_logits(byref(self._model), hidden.data_ptr(), rows, logits.data_ptr())
        return logits

    def commit(self, batch: ForwardBatch, caches: Caches, num_accepted: Sequence[int]) -> None:
        """Nothing to do: rows behind the accepted ones are overwritten before they are ever read."""

    def step_work(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> Work:
        down = _native(self._weights.layers[0].down)
        bytes_per_weight = down.num_bytes / (down.in_features * down.out_features)
        return work.step_work(
            self.config,
            query_lens,
            context_lens,
            bytes_per_weight=bytes_per_weight,
            bytes_per_cache_value=self._row_bytes / self.config.head_dim,
        )


def _native(linear: object) -> NativeLinear:
    assert isinstance(linear, NativeLinear), f"{type(linear).__name__} is not a native layer"
    return linear


def _units(starts: np.ndarray, lens: np.ndarray, context: np.ndarray, per_unit: int) -> np.ndarray:
    """[U, 4] int64: first row, number of rows, position of the first, sequence; rows of a unit share keys.

    starts, lens, context   [B]: first row, rows, tokens before them
    """
    counts = -(-lens // per_unit)
    sequence = np.repeat(np.arange(len(lens)), counts)
    offset = (np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)) * per_unit
    units = np.empty((len(sequence), 4), dtype=np.int64)
    units[:, 0] = starts[sequence] + offset
    units[:, 1] = np.minimum(per_unit, lens[sequence] - offset)
    units[:, 2] = context[sequence] + offset
    units[:, 3] = sequence
    return units


def _lane_groups(block_ids: np.ndarray, block_size: int) -> np.ndarray:
    """[B, n] block ids -> [B, n * block/16] ids of groups of 16 tokens."""
    per_block = block_size // _LANES
    if per_block == 1:
        return block_ids
    return np.ascontiguousarray((block_ids[:, :, None] * per_block + np.arange(per_block)).reshape(len(block_ids), -1))
