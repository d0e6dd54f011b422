"""Bytes of one cached row in each cache format; torch-free. Not responsible for making them (reference.py).

Byte order within a row: quantised channels, channels kept in bf16, scales, padding.
Sources: DeepSeek V4's reference code as described for FlashMLA's "fp8_ds_mla" (448 e4m3 + 64 bf16 + 7 e8m0 + 1
pad = 584 B) and for its indexer (FP8: 128 e4m3 + one fp32 scale = 132 B; FP4: 64 B + 4 e8m0 = 68 B).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.errors import ConfigError

KV_DTYPES = ("fp32", "bf16", "fp8_e4m3")
INDEX_DTYPES = ("fp32", "bf16", "fp8_e4m3", "fp4")


@dataclass(frozen=True, slots=True)
class RowLayout:
    """
    dtype           fp32 | bf16 | fp8_e4m3 | fp4
    width           channels of a row
    num_plain       last channels that stay bf16 beside quantised ones (the rope part of a kv row)
    group           quantised channels that share a scale; the last group may be short
    bytes_per_scale 1: power of two as e8m0; 4: power of two as float32
    multiple        a row is padded to a multiple of so many bytes
    """

    dtype: str
    width: int
    num_plain: int = 0
    group: int = 1
    bytes_per_scale: int = 1
    multiple: int = 1

    @property
    def is_packed(self) -> bool:
        """Rows are raw bytes rather than elements of a torch dtype."""
        return self.dtype in ("fp8_e4m3", "fp4")

    @property
    def num_quantised(self) -> int:
        return self.width - self.num_plain

    @property
    def num_scales(self) -> int:
        return -(-self.num_quantised // self.group)

    @property
    def code_bytes(self) -> int:
        return self.num_quantised // 2 if self.dtype == "fp4" else self.num_quantised

    @property
    def row_bytes(self) -> int:
        if not self.is_packed:
            return self.width * (4 if self.dtype == "fp32" else 2)
        used = self.code_bytes + 2 * self.num_plain + self.num_scales * self.bytes_per_scale
        return -(-used // self.multiple) * self.multiple


def kv_layout(dtype: str, head_dim: int, rope_dim: int) -> RowLayout:
    """A window row or compressed entry: in fp8 the rope channels stay bf16, scales cover min(64, nope) channels."""
    if dtype in ("fp32", "bf16"):
        return RowLayout(dtype, head_dim)
    if dtype == "fp8_e4m3":
        nope = head_dim - rope_dim
        return RowLayout(dtype, head_dim, num_plain=rope_dim, group=max(1, min(64, nope)), multiple=8)
    raise ConfigError(f"kv_cache_dtype={dtype!r} is not possible: choose from {', '.join(KV_DTYPES)}")


def index_layout(dtype: str, index_head_dim: int) -> RowLayout:
    """An indexer key."""
    if dtype in ("fp32", "bf16"):
        return RowLayout(dtype, index_head_dim)
    if dtype == "fp8_e4m3":
        return RowLayout(dtype, index_head_dim, group=min(128, index_head_dim), bytes_per_scale=4, multiple=4)
    if dtype == "fp4":
        return RowLayout(dtype, index_head_dim, group=min(32, index_head_dim), multiple=4)
    raise ConfigError(f"index_cache_dtype={dtype!r} is not possible: choose from {', '.join(INDEX_DTYPES)}")
