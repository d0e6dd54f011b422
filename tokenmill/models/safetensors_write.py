"""Write a .safetensors file piece by piece: the header is known beforehand, tensors come in parts of their rows.

The file has its name only once it is whole and on disk. Not responsible for: shards, what is written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from tokenmill.core.errors import ResourceError
from tokenmill.models.safetensors_file import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PART_SUFFIX = ".part"


class SafetensorsWriter:
    """tensors: dtype and shape by name, in file order. Use as a context: leaving it without an error completes it."""

    def __init__(
        self, path: Path, tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
    ) -> None:
        self._path = path
        self._part = path.with_name(path.name + PART_SUFFIX)
        header, ends = _header(tensors, metadata)
        self._at = {name: begin + len(header) for name, (begin, _) in ends.items()}
        self._end = {name: end + len(header) for name, (_, end) in ends.items()}
        self._file = self._part.open("wb")
        try:
            self._file.write(header)
            self._file.truncate(max(self._end.values(), default=len(header)))
        except OSError as error:
            self.abandon()
            raise self._failed(error) from None

    def append(self, name: str, rows: Tensor) -> None:
        """The next values of tensor `name`."""
        data = rows.contiguous().reshape(-1).view(torch.uint8).numpy()
        assert self._at[name] + data.nbytes <= self._end[name], f"{name} gets more than was announced"
        try:
            self._file.seek(self._at[name])
            self._file.write(data.data)
        except OSError as error:
            raise self._failed(error) from None
        self._at[name] += data.nbytes

    def finish(self) -> None:
        short = [name for name, at in self._at.items() if at != self._end[name]]
        assert not short, f"never written in full: {short[:5]}"
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._path)
        except OSError as error:
            raise self._failed(error) from None

    def abandon(self) -> None:
        try:
            self._file.close()
        except OSError:  # what was buffered does not fit either
            pass
        self._part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"{self._part} cannot be written ({error.strerror or error}): make room, then run the same command again; "
            "it goes on after the last whole file"
        )

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
            return
        self.finish()


def _header(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Bytes before the data (a multiple of 8), and begin and end of each tensor after them."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    places, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        places[name] = (at, at + math.prod(shape) * dtype.itemsize)
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": list(places[name])}
        at = places[name][1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places
