"""DeepSeek V4 on the C kernels: a whole step is one call (kernels/native/csrc/v4.c).

Same weights, cache groups and cache tensors as model.DeepseekV4, which stays the definition. In bfloat16 linear layers
and experts are packed and everything that V4 computes in float32 stays float32; in float32 nothing is rounded at all.
Not responsible for: the arithmetic (C), choosing this path (builder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref, c_void_p
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from tokenmill.kernels.native.library import Library
from tokenmill.kernels.native.linear import Activations
from tokenmill.kernels.native.v4 import (
    CollapseStruct,
    LayoutStruct,
    ModelStruct,
    StepStruct,
    TableStruct,
    V4Library,
)
from tokenmill.kernels.select import Kernels
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch, GroupTable
from tokenmill.models.deepseek_v4.config import CSA_RATIO, AttentionKind, DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.model import Trace, V4Base
from tokenmill.models.deepseek_v4.native_weights import NativeWeights
from tokenmill.models.deepseek_v4.step import compress_rotary, sliding_rotary
from tokenmill.models.deepseek_v4.weights import (
    Weights,
)

_LANES = 16
_UNIT_ROWS = 8  # UNIT_ROWS in v4.h


def unsupported_reason(config: DeepseekV4Config) -> str | None:
    """Why the C kernels cannot serve this model, or None."""
    if config.head_dim % _LANES:
        return f"head_dim {config.head_dim} is not a multiple of {_LANES}"
    return None


class NativeDeepseekV4(V4Base):
    """See models/base.Model."""

    def __init__(
        self,
        config: DeepseekV4Config,
        weights: Weights,
        kernels: Kernels,
        library: Library,
        formats: CacheFormats,
        dtype: torch.dtype,
    ) -> None:
        """Takes the weights: each layer's plain tensors are let go as soon as they are packed."""
        super().__init__(config, weights, formats, dtype)
        self._library = V4Library(library)
        self._native = NativeWeights(config, weights, kernels, dtype)
        self._layers, self._mtp = self._native.layers, self._native.mtp
        self._frequencies = [torch.tensor(rotary(config).frequencies) for rotary in (sliding_rotary, compress_rotary)]
        self._model = self._model_struct()
        self._caches: Caches | None = None
        self._scratch_rows = 0
        self._scratch: dict[str, Tensor] = {}
        self._pending: tuple[ForwardBatch, StepStruct, list[object]] | None = None

    # -- structures --

    def _model_struct(self) -> ModelStruct:
        c = self.config
        return ModelStruct(
            num_layers=c.num_hidden_layers,
            hidden=c.hidden_size,
            heads=c.num_attention_heads,
            head_dim=c.head_dim,
            rope_dim=c.qk_rope_head_dim,
            rank=c.q_lora_rank,
            groups=c.o_groups,
            o_rank=c.o_lora_rank,
            window=c.sliding_window,
            index_heads=c.index_n_heads,
            index_dim=c.index_head_dim,
            topk=c.index_topk,
            experts=c.n_routed_experts,
            per_token=c.num_experts_per_tok,
            inner=c.moe_intermediate_size,
            streams=c.hc_mult,
            iters=c.hc_sinkhorn_iters,
            vocab=c.vocab_size,
            eps=c.rms_norm_eps,
            hc_eps=c.hc_eps,
            routed_scaling=c.routed_scaling_factor,
            limit=c.swiglu_limit,
            kv=LayoutStruct.of(self.formats.kv),
            index=LayoutStruct.of(self.formats.index),
            sliding_freq=self._frequencies[0].data_ptr(),
            compress_freq=self._frequencies[1].data_ptr(),
            embed=self._native.embed.data_ptr(),
            embed_is_fp32=int(self._native.is_fp32),
            layers=addressof(self._layers),
            collapse=self._native.collapse,
            head=self._native.head,
        )

    def _reserve_scratch(self, rows: int) -> None:
        """Buffers for the largest step so far; the structure points into them."""
        if rows <= self._scratch_rows:
            return
        rows = max(rows, 2 * self._scratch_rows)
        c, n = self.config, self.config.hc_mult
        routed = rows * c.num_experts_per_tok
        floats = {
            "x": rows * c.hidden_size,
            "y": rows * c.hidden_size,
            "post": rows * n,
            "comb": rows * n * n,
            "mixes": rows * (2 + n) * n,
            "qkv": rows * (c.q_lora_rank + c.head_dim),
            "q": rows * c.num_attention_heads * c.head_dim,
            "mixed": rows * c.num_attention_heads * c.head_dim,
            "z": rows * c.o_groups * c.o_lora_rank,
            "iq": rows * c.index_n_heads * c.index_head_dim,
            "iw": rows * c.index_n_heads,
            "gate": rows * c.n_routed_experts,
            "wide": rows * 2 * c.moe_intermediate_size,
            "hidden_rows": routed * 2 * c.moe_intermediate_size,
            "routed": routed * c.hidden_size,
            "cos": rows * c.qk_rope_head_dim,
            "sin": rows * c.qk_rope_head_dim,
            "expert_weights": routed,
            "proj": rows * self._proj_width,
        }
        ints = {
            "chosen": rows * c.index_topk,
            "num_chosen": rows,
            "expert_ids": routed,
            "expert_rows": routed,
            "expert_start": c.n_routed_experts + 1,
        }
        self._scratch = {name: torch.empty(size) for name, size in floats.items()}
        self._scratch |= {name: torch.empty(size, dtype=torch.int64) for name, size in ints.items()}
        for name, tensor in self._scratch.items():
            if name != "proj":
                setattr(self._model, name, tensor.data_ptr())
        m = self._model
        inputs = self._native.max_inputs * (2 if self._native.is_fp32 else 1)  # in units of a bf16
        self._act, self._act_rows = (Activations("bf16", size, inputs) for size in (rows, routed))
        m.act, m.act_scale, m.act_offsets = self._act.pointers
        m.act_rows, m.act_rows_scale, m.act_rows_offsets = self._act_rows.pointers
        self._scratch_rows = rows

    @property
    def _proj_width(self) -> int:
        """Floats per row of the widest compressor projection: kv and gate, both parts and both compressors of CSA."""
        c = self.config
        csa = 4 * (c.head_dim + c.index_head_dim) if CSA_RATIO in c.compress_ratios else 0
        return max(csa, 2 * c.head_dim)

    def _point_at(self, caches: Caches) -> None:
        """Addresses of the cache tensors, in the order of caches.py."""
        if caches is self._caches:
            return
        csa, hca = (self.config.layers_of(kind) for kind in (AttentionKind.CSA, AttentionKind.HCA))
        for i, layer in enumerate(self._layers):
            layer.window = caches["window"][i].data_ptr()
            if i in csa:
                at = csa.index(i)
                layer.entries, layer.keys = caches["csa"][at].data_ptr(), caches["indexer"][at].data_ptr()
                layer.state, layer.index_state = (t.data_ptr() for t in caches["csa_state"][2 * at : 2 * at + 2])
            elif i in hca:
                at = hca.index(i)
                layer.entries, layer.state = caches["hca"][at].data_ptr(), caches["hca_state"][at].data_ptr()
        for i, mtp in enumerate(self._mtp):
            mtp.layer.window = caches["mtp_window"][i].data_ptr()
        self._caches = caches

    def _step(self, batch: ForwardBatch) -> tuple[StepStruct, list[object]]:
        """The step's view for C, and what must stay alive while it is used."""
        first, context = batch.cu_seqlens, batch.context_lens
        lens = [end - begin for begin, end in pairwise(first)]
        total = [c + n for c, n in zip(context, lens, strict=True)]
        certain = [t - d for t, d in zip(total, batch.draft_lens, strict=True)]
        units = _units(first)
        parts = {
            "seq_ids": [b for b, n in enumerate(lens) for _ in range(n)],
            "context": context,
            "total": total,
            "certain": certain,
            "first_row": first,
            "shared": batch.protected_lens or [0] * batch.num_seqs,
            "units": units,
        }
        numbers = np.array([n for part in parts.values() for n in part], dtype=np.int64)
        ends = accumulate(len(part) for part in parts.values())
        starts = (end - len(part) for end, part in zip(ends, parts.values(), strict=True))
        address = numbers.ctypes.data
        step = StepStruct(
            num_tokens=batch.num_tokens,
            num_seqs=batch.num_seqs,
            block_size=batch.block_size,
            num_units=len(units) // 3,
            token_ids=batch.token_ids.data_ptr(),
            positions=batch.positions.data_ptr(),
            **{name: address + 8 * start for name, start in zip(parts, starts, strict=True)},
        )
        keep: list[object] = [batch, numbers]
        for name, table in batch.tables.items():
            setattr(step, name, _table(table))
        return step, keep

    # -- the seam --

    def forward(self, batch: ForwardBatch, caches: Caches) -> Tensor:
        """Final hidden states [T, C] float32, normalised."""
        return self.collapse(self.forward_streams(batch, caches))

    def forward_streams(self, batch: ForwardBatch, caches: Caches, trace: Trace | None = None) -> Tensor:
        """The trunk's streams before they are collapsed [T, N, C] float32, which the MTP block takes."""
        c, rows = self.config, batch.num_tokens
        self._point_at(caches)
        self._reserve_scratch(rows)
        step, keep = self._step(batch)
        streams = torch.empty(rows, c.hc_mult, c.hidden_size)
        has_drafts = any(batch.draft_lens)
        num_layers = c.num_hidden_layers
        if has_drafts:
            proj = torch.empty(num_layers, rows * self._proj_width)
            addresses = [row.data_ptr() for row in proj]
            keep.append(proj)
        else:
            addresses = [self._scratch["proj"].data_ptr()] * num_layers
        pointers = (c_void_p * num_layers)(*addresses)
        keep.append(pointers)
        step.proj, step.streams = addressof(pointers), streams.data_ptr()
        traced = self._trace_buffers(step, rows) if trace is not None else None
        self._library.step(byref(self._model), byref(step))
        if trace is not None and traced is not None:
            trace.streams.update(enumerate(traced[0]))
            trace.chosen.update({i: traced[1][i] for i in c.layers_of(AttentionKind.CSA)})
        self._pending = (batch, step, keep) if has_drafts else None
        return streams

    def _trace_buffers(self, step: StepStruct, rows: int) -> tuple[Tensor, Tensor]:
        c = self.config
        streams = torch.empty(c.num_hidden_layers, rows, c.hc_mult, c.hidden_size)
        chosen = torch.full((c.num_hidden_layers, rows, c.index_topk), -1)
        step.trace_streams, step.trace_chosen = streams.data_ptr(), chosen.data_ptr()
        return streams, chosen

    def collapse(self, streams: Tensor) -> Tensor:
        """Trunk streams [T, N, C] -> hidden states [T, C] for compute_logits."""
        return self._collapse_rows(self._native.collapse, streams)

    def _collapse_rows(self, collapse: CollapseStruct, streams: Tensor) -> Tensor:
        streams = streams.contiguous()
        self._reserve_scratch(len(streams))
        hidden = torch.empty(len(streams), self.config.hidden_size)
        self._library.collapse(byref(self._model), byref(collapse), streams.data_ptr(), len(streams), hidden.data_ptr())
        return hidden

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._native.embed[token_ids]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, C] -> [R, V] float32."""
        hidden = hidden.contiguous()
        self._reserve_scratch(len(hidden))
        logits = torch.empty(len(hidden), self.vocab_size)
        self._library.logits(byref(self._model), hidden.data_ptr(), len(hidden), logits.data_ptr())
        return logits

    def commit(self, batch: ForwardBatch, caches: Caches, num_accepted: Sequence[int]) -> None:
        """Window rows and entries of rejected rows are overwritten before they are read; states are written here."""
        pending, self._pending = self._pending, None
        if not any(batch.draft_lens):
            return
        assert pending is not None and pending[0] is batch, "commit must follow the forward of the same batch"
        after = np.array(batch.context_lens, dtype=np.int64) + np.array(num_accepted, dtype=np.int64)
        lens = [batch.query_len(b) for b in range(batch.num_seqs)]
        certain = [n - d for n, d in zip(lens, batch.draft_lens, strict=True)]
        assert all(low <= a <= high for low, a, high in zip(certain, num_accepted, lens, strict=True)), (
            f"accepted {num_accepted}"
        )
        self._library.commit(byref(self._model), byref(pending[1]), after.ctypes.data)

    # -- MTP --

    def mtp_forward(
        self, batch: ForwardBatch, caches: Caches, streams: Tensor, next_ids: Tensor, block: int = 0
    ) -> Tensor:
        """See model.DeepseekV4.mtp_forward."""
        self._check_mtp()
        self._point_at(caches)
        self._reserve_scratch(batch.num_tokens)
        step, keep = self._step(batch)
        streams, next_ids = streams.contiguous(), next_ids.contiguous()
        out = torch.empty_like(streams)
        step.streams = out.data_ptr()
        self._library.mtp(
            byref(self._model), byref(self._mtp[block]), byref(step), streams.data_ptr(), next_ids.data_ptr()
        )
        del keep
        return out

    def mtp_logits(self, streams: Tensor, block: int = 0) -> Tensor:
        """MTP streams at t [R, N, C] -> logits [R, V] float32 of the token at t + 2."""
        return self.compute_logits(self._collapse_rows(self._mtp[block].collapse, streams))


def _units(first: Sequence[int]) -> list[int]:
    """[U x 3]: first row, number of rows, sequence; rows of a unit share decoded keys."""
    units: list[int] = []
    for b, (begin, end) in enumerate(pairwise(first)):
        for row in range(begin, end, _UNIT_ROWS):
            units += (row, min(_UNIT_ROWS, end - row), b)
    return units


def _table(table: GroupTable) -> TableStruct:
    assert table.block_ids.is_contiguous()
    return TableStruct(table.block_ids.data_ptr(), table.first_block.data_ptr(), table.block_ids.shape[1])
