"""Cached rows in their storage format: encode on write, decode on read; what is read is what attention uses.

The storage of a row is `layout.row_bytes` long: elements of float32 or bfloat16, or raw bytes (uint8) when
quantised. Quantised values are those of DeepSeek's reference ("fake-quantised"), because the packed bytes are
made and read here and nowhere else.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from tokenmill.kernels.kv_quant.layout import RowLayout


class EncodeRows(Protocol):
    def __call__(self, rows: Tensor, layout: RowLayout) -> Tensor:
        """rows [n, width] float32 -> [n, storage_width(layout)] of storage_dtype(layout)."""
        ...


class DecodeRows(Protocol):
    def __call__(self, stored: Tensor, layout: RowLayout) -> Tensor:
        """The inverse: [n, storage width] -> [n, width] float32."""
        ...
