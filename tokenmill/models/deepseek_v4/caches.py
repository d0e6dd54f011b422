"""Cache tensors of DeepSeek V4: their shapes, and rows in and out by physical slot. Torch side of groups.py.

Every tensor's dimension 0 is the physical block of its group. Per group one tensor per layer (window, csa, hca,
hca_state, mtp_window), in layer order; `indexer` one per CSA layer; `csa_state` main then indexer for each CSA layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels.kv_quant.layout import RowLayout
from tokenmill.kernels.kv_quant.reference import decode, encode, storage_dtype, storage_width
from tokenmill.models.allocate import lazy_zeros
from tokenmill.models.base import Caches
from tokenmill.models.deepseek_v4.config import CSA_RATIO, AttentionKind, DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import (
    CSA_STATE_ROWS,
    HCA_STATE_ROWS,
    CacheFormats,
    cache_groups,
)


def allocate_caches(
    config: DeepseekV4Config, formats: CacheFormats, num_blocks: dict[str, int], block_size: int, num_mtp: int
) -> Caches:
    """Zeroed; the bytes of a block over all tensors of a group are its bytes_per_block, which is asserted."""

    def rows(group: str, ratio: int, layout: RowLayout) -> Tensor:
        shape = num_blocks[group], block_size // ratio, storage_width(layout)
        return lazy_zeros(shape, storage_dtype(layout))

    num_csa = len(config.layers_of(AttentionKind.CSA))
    hca_ratios = [config.compress_ratios[i] for i in config.layers_of(AttentionKind.HCA)]
    caches: Caches = {}
    for group in cache_groups(config, formats, block_size, num_mtp):
        name, n = group.name, num_blocks[group.name]
        match name:
            case "window":
                caches[name] = [rows(name, 1, formats.kv) for _ in range(config.num_hidden_layers)]
            case "mtp_window":
                caches[name] = [rows(name, 1, formats.kv) for _ in range(num_mtp)]
            case "csa":
                caches[name] = [rows(name, CSA_RATIO, formats.kv) for _ in range(num_csa)]
            case "indexer":
                caches[name] = [rows(name, CSA_RATIO, formats.index) for _ in range(num_csa)]
            case "hca":
                caches[name] = [rows(name, ratio, formats.kv) for ratio in hca_ratios]
            case "csa_state":
                widths = [config.head_dim, config.index_head_dim] * num_csa
                caches[name] = [lazy_zeros((n, 2, CSA_STATE_ROWS, width), torch.float32) for width in widths]
            case "hca_state":
                caches[name] = [lazy_zeros((n, HCA_STATE_ROWS, config.head_dim), torch.float32) for _ in hca_ratios]
        held = sum(t[0].numel() * t.element_size() for t in caches[name])
        assert held == group.bytes_per_block, f"{name}: {held} bytes per block, declared {group.bytes_per_block}"
    return caches


def write_rows(cache: Tensor, slots: Tensor, rows: Tensor, layout: RowLayout) -> None:
    """rows [n, width] float32 into physical rows `slots` of [blocks, rows per block, storage width]."""
    cache.flatten(0, 1)[slots] = encode(rows, layout)


def read_rows(cache: Tensor, slots: Tensor, layout: RowLayout) -> Tensor:
    """slots [...] -> [..., width] float32."""
    stored = cache.flatten(0, 1).index_select(0, slots.flatten())
    return decode(stored, layout).unflatten(0, slots.shape)


def fill_synthetic(
    caches: Caches, config: DeepseekV4Config, formats: CacheFormats, seed: int = 0, num_rows: int = 4096
) -> None:
    """Plausible content for measuring long contexts without computing them: encoded normal rows, repeated.

    Every tensor is filled, whatever its size, from `num_rows` drawn rows; states hold a window in progress.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensors in caches.items():
        for cache in tensors:
            if name.endswith("_state"):
                cache.normal_(generator=generator)
                if name == "hca_state":
                    cache[:, 1].abs_().add_(1.0)  # a total of weights, at least that of the maximum itself
                continue
            layout = formats.index if name == "indexer" else formats.kv
            rows = encode(torch.randn(num_rows, layout.width, generator=generator), layout)
            flat = cache.flatten(0, 1)
            for begin in range(0, len(flat), num_rows):
                flat[begin : begin + num_rows] = rows[: len(flat) - begin]
