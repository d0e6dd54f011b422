"""Reads single metadata values out of a .gguf file without touching its tensors. Needs neither torch nor gguf.

Format: ggml-org/ggml, docs/gguf.md (versions 2 and 3, little-endian). Not responsible for: tensors (weights_gguf.py).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from tokenmill.core.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_STRING = 1 << 28


def read_gguf_metadata(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """The values of those of `keys` that the file has; `*.name` stands for any architecture's prefix.

    CheckpointError when the file is no GGUF or ends too early.
    """
    try:
        with path.open("rb") as file:
            return _read(file, set(keys))
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CheckpointError(f"{path}: the GGUF header cannot be read ({error}): fetch the file again") from None


def _read(file: BinaryIO, keys: set[str]) -> dict[str, Any]:
    magic, version, _, num_values = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"magic {magic!r}, version {version}")
    found: dict[str, Any] = {}
    end = os.fstat(file.fileno()).st_size
    for _ in range(num_values):
        if len(found) == len(keys):
            break
        key = _read_string(file)
        (kind,) = struct.unpack("<I", file.read(4))
        wanted = key if key in keys else "*" + key[key.find(".") :]
        if wanted in keys:
            found[wanted] = _read_value(file, kind)
        else:
            _skip_value(file, kind)
        if file.tell() > end:
            raise ValueError("it ends inside a value")
    return found


def _read_value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _read_string(file)
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        return [_read_value(file, inner) for _ in range(count)]
    code = "<" + _scalar(kind)
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_string_size(file), 1)
    elif kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in (_STRING, _ARRAY):
            for _ in range(count):
                _skip_value(file, inner)
        else:
            file.seek(struct.calcsize("<" + _scalar(inner)) * count, 1)
    else:
        file.seek(struct.calcsize("<" + _scalar(kind)), 1)


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind} is unknown")
    return _SCALARS[kind]


def _string_size(file: BinaryIO) -> int:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > _LONGEST_STRING:
        raise ValueError(f"a string of {size} bytes")
    return int(size)


def _read_string(file: BinaryIO) -> str:
    size = _string_size(file)
    data = file.read(size)
    if len(data) < size:
        raise ValueError("it ends inside a string")
    return data.decode()
