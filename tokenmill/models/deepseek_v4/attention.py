"""Attention of one V4 layer: latent queries, one kv head that is key and value, window plus compressed rows.

Three kinds share this code: sliding (window only), CSA (plus the entries its indexer chooses), HCA (plus all
entries). The compressor runs before attention, because the entry that closes at a token is visible to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.grouped_linear.reference import grouped_linear
from tokenmill.kernels.select import Kernels
from tokenmill.kernels.sparse_attention.reference import sparse_attention
from tokenmill.models.deepseek_v4.caches import read_rows, write_rows
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.step import Rotation, RowGroups
from tokenmill.models.deepseek_v4.step_index import WindowIndex
from tokenmill.models.deepseek_v4.weights import AttentionWeights

#: Values of gathered rows alive at once (16 MiB of float32); cutting the rows of a step changes no bit.
_MAX_GATHERED = 2**22


class CompressedRows(Protocol):
    """The compressed side of a layer in one step."""

    groups: RowGroups

    def fetch(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Batch rows [n] -> their compressed rows [n, width, D] and which of them count [n, width]."""
        ...


@dataclass(frozen=True, slots=True)
class Queries:
    """x [T, C] layer input, latent [T, q_lora] (also the indexer's), q [T, H, D] turned, kv [T, D] turned."""

    x: Tensor
    latent: Tensor
    q: Tensor
    kv: Tensor


class Attention:
    def __init__(
        self,
        config: DeepseekV4Config,
        weights: AttentionWeights,
        kernels: Kernels,
        formats: CacheFormats,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._formats = formats
        self._dtype = dtype
        self._qkv = kernels.linear(weights.qkv)
        self._wq_b = kernels.linear(weights.wq_b)
        self._wo_a = weights.wo_a
        self._wo_b = kernels.linear(weights.wo_b)
        self._q_norm, self._kv_norm, self.sink = weights.q_norm, weights.kv_norm, weights.sink

    def project(self, x: Tensor, rotation: Rotation) -> Queries:
        """x [T, C] float32, normalised."""
        config, eps = self._config, self._config.rms_norm_eps
        latent, kv = self._qkv(x.to(self._dtype)).float().split([config.q_lora_rank, config.head_dim], dim=-1)
        latent = self._kernels.rms_norm(latent, self._q_norm, eps)
        q = self._wq_b(latent.to(self._dtype)).float().unflatten(-1, (config.num_attention_heads, config.head_dim))
        q = q * torch.rsqrt(invariant.mean_square(q) + eps)  # per head, no learned weight
        kv = self._kernels.rms_norm(kv, self._kv_norm, eps)
        return Queries(x, latent, turn(q, rotation), turn(kv, rotation))

    def write_window(self, queries: Queries, window: WindowIndex, cache: Tensor) -> None:
        write_rows(cache, window.write_slots, queries.kv, self._formats.kv)

    def attend(
        self,
        queries: Queries,
        rotation: Rotation,
        window: WindowIndex,
        cache: Tensor,
        compressed: CompressedRows | None,
    ) -> Tensor:
        """-> [T, C] float32. The window cache holds the step's own rows already."""
        window_rows = read_rows(cache, window.read_slots, self._formats.kv)
        scale = self._config.head_dim**-0.5
        out = torch.empty_like(queries.q)
        for width, rows in self._pieces(window, compressed):
            keys, is_valid = window_rows[window.rows[rows]], window.is_valid[rows]
            if width:
                assert compressed is not None
                more, more_valid = compressed.fetch(rows, width)
                keys, is_valid = torch.cat((keys, more), dim=1), torch.cat((is_valid, more_valid), dim=1)
            out[rows] = sparse_attention(queries.q[rows], keys, is_valid, self.sink, scale)
        return self.project_out(turn(out, rotation.inverse()))

    def _pieces(self, window: WindowIndex, compressed: CompressedRows | None) -> list[tuple[int, Tensor]]:
        """Rows that attend to equally many padded keys, cut so that what they gather stays bounded."""
        num_rows, num_window = window.rows.shape
        groups = compressed.groups.groups if compressed is not None else ((0, torch.arange(num_rows)),)
        return [
            (width, piece)
            for width, rows in groups
            for piece in rows.split(max(1, _MAX_GATHERED // ((num_window + width) * self._config.head_dim)))
        ]

    def project_out(self, heads: Tensor) -> Tensor:
        """[T, H, D] -> [T, C]: per group of heads to o_lora_rank channels, then all groups together."""
        grouped = heads.flatten(1).unflatten(-1, (self._config.o_groups, -1))
        latent = grouped_linear(grouped, self._wo_a)
        return self._wo_b(latent.flatten(1).to(self._dtype)).float()


def turn(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the last channels of [T, D] or [T, H, D] in interleaved pairs, written out in float32."""
    rope_dim = 2 * rotation.cos.shape[-1]
    cos, sin = rotation.cos, rotation.sin
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    nope, rope = x[..., :-rope_dim], x[..., -rope_dim:]
    even, odd = rope[..., 0::2], rope[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((nope, turned), dim=-1)


def pad_entries(entries: Tensor, width: int) -> Tensor:
    """[n, k] entry numbers, -1 where none -> [n, width]."""
    return F.pad(entries[:, :width], (0, max(0, width - entries.shape[1])), value=-1)
