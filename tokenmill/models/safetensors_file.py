"""One memory-mapped .safetensors file: its header checked, its tensors as views. Not responsible for: shards, names.

Format (huggingface/safetensors, README "Format"): 8 bytes little-endian header length, JSON header
{name: {dtype, shape, data_offsets}}, then the data; offsets count from the end of the header.
Read here rather than through the library in order to say what is broken, and to give mapped pages back after use.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `begin` .. `end` are bytes from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """`tensors` by name; `header` the raw header bytes; `metadata` what its writer noted; `size_bytes` of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # Copy-on-write and never written: torch refuses to view read-only memory without a warning.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}; fetch the model again") from None
        self.size_bytes = len(self._map)
        self.header, self.tensors = self._read_header()

    def _read_header(self) -> tuple[bytes, dict[str, TensorInfo]]:
        length = int.from_bytes(self._map[:8], "little") if self.size_bytes >= 8 else 0
        if not 2 <= length <= min(_MAX_HEADER_BYTES, self.size_bytes - 8):
            raise self._broken(f"its header length is {length} bytes in a file of {self.size_bytes}")
        header = self._map[8 : 8 + length]
        try:
            entries: dict[str, Any] = json.loads(header)
            self.metadata: dict[str, str] = entries.pop("__metadata__", None) or {}
            return header, {name: self._info(name, entry, 8 + length) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._broken(f"its header cannot be read ({type(error).__name__}: {error})") from None

    def _info(self, name: str, entry: dict[str, Any], data_begin: int) -> TensorInfo:
        if entry["dtype"] not in DTYPES:
            possible = ", ".join(DTYPES)
            raise CheckpointError(f"{self.path}: tensor {name} has dtype {entry['dtype']}; possible: {possible}")
        dtype, shape = DTYPES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
        begin, end = (data_begin + int(offset) for offset in entry["data_offsets"])
        if end > self.size_bytes:
            raise self._broken(f"tensor {name} ends at byte {end} of a file of {self.size_bytes}")
        if min(shape, default=0) < 0 or begin < data_begin or end - begin != math.prod(shape) * dtype.itemsize:
            raise self._broken(f"tensor {name} {shape} of {dtype} cannot fill bytes {begin} to {end}")
        return TensorInfo(dtype, shape, begin, end)

    def _broken(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is truncated or corrupt: {what}; fetch the model again")

    def read(self, name: str) -> Tensor:
        """The tensor as stored, a view of the mapped file: copy it before `release` or `close`."""
        info = self.tensors[name]
        count = math.prod(info.shape)
        if count == 0:
            return torch.empty(info.shape, dtype=info.dtype)
        return torch.frombuffer(self._map, dtype=info.dtype, count=count, offset=info.begin).view(info.shape)

    def sample(self, begin: int, end: int) -> bytes:
        return self._map[begin:end]

    def release(self, name: str) -> None:
        """Drop the tensor's pages from this process, so that loading peaks at weights + one tensor."""
        info = self.tensors[name]
        page = mmap.PAGESIZE
        begin = -(-info.begin // page) * page
        length = info.end // page * page - begin
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, length)
