"""One memory-mapped .gguf file: its metadata and where its tensors lie. Needs neither torch nor the gguf package.

Format: ggml-org/ggml, docs/gguf.md (versions 2 and 3, little-endian). Vocabularies are skipped: reading them takes
seconds and text/ does it. Not responsible for: what the values mean, de-quantising (weights_gguf.py).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.core.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_KEPT_ARRAY = 1024
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """
    shape   rows first, as torch has it (the file lists the fastest dimension first)
    kind    ggml type number
    begin   byte in the file
    """

    shape: tuple[int, ...]
    kind: int
    begin: int


class GGUFFile:
    """
    metadata   scalars, strings and short arrays by key; a long array is represented by its length
    tensors    by the file's own names
    data_begin first byte behind all headers
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # Copy-on-write and never written: numpy and torch want memory that they could write.
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}; fetch the model again") from None
        self._at = 0
        try:
            self._parse()
        except (struct.error, ValueError, IndexError) as error:
            raise self.broken(f"its header cannot be read at byte {self._at} ({error})") from None

    def broken(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is truncated or corrupt: {what}; fetch the model again")

    def _parse(self) -> None:
        if self.map[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, num_tensors, num_values = self._unpack("IQQ")
        if version not in (2, 3):
            raise ValueError(f"version {version}; possible: 2 and 3, little-endian")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            self.metadata[key] = self._value(self._unpack("I")[0])
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        self.data_begin = -(-self._at // alignment) * alignment
        self.tensors = {
            name: GGUFTensor(shape, kind, self.data_begin + offset) for name, shape, kind, offset in tensors
        }

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (num_dims,) = self._unpack("I")
        if num_dims > 4:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        shape = self._unpack(f"{num_dims}Q")
        kind, offset = self._unpack("IQ")
        return name, shape[::-1], kind, offset

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._unpack(self._code(kind))[0]

    def _array(self) -> Any:
        kind, count = self._unpack("IQ")
        if count <= _LONGEST_KEPT_ARRAY:
            return [self._value(kind) for _ in range(count)]
        if kind in (_STRING, _ARRAY):
            self._skip_long_array(kind, count)
        else:
            self._at += struct.calcsize("<" + self._code(kind)) * count
        if self._at > len(self.map):
            raise ValueError("it ends inside an array")
        return count

    def _skip_long_array(self, kind: int, count: int) -> None:
        if kind == _ARRAY:
            for _ in range(count):
                self._array()
            return
        at, data, length_of = self._at, self.map, struct.Struct("<Q").unpack_from
        for _ in range(count):  # a vocabulary: hundreds of thousands of strings
            at += 8 + length_of(data, at)[0]
        self._at = at

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        data = self.map[self._at : self._at + length]
        if len(data) < length:
            raise ValueError("it ends inside a string")
        self._at += length
        return data.decode()

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} is unknown")
        return _SCALARS[kind]

    def _unpack(self, code: str) -> tuple[Any, ...]:
        code = "<" + code
        values = struct.unpack_from(code, self.map, self._at)
        self._at += struct.calcsize(code)
        return values

    def release(self, begin: int, end: int) -> None:
        """Drop the pages of a range from this process."""
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        length = end // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED, first, length)


def num_values(tensor: GGUFTensor) -> int:
    return math.prod(tensor.shape)
