"""Weights out of a .gguf file: de-quantised tensor by tensor, under Hugging Face names and row order.

Needs the `gguf` package (extra `[gguf]`), for its de-quantisers. Not responsible for: the file's layout
(gguf_file.py), keys and names (gguf_names.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import xxhash
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.models import gguf_names
from tokenmill.models.gguf_blocks import dequantise_quick
from tokenmill.models.gguf_file import GGUFFile, GGUFTensor
from tokenmill.models.weights import listed, sample_ranges

_ROPE_DIVISORS = "rope_freqs.weight"
_CHUNK_VALUES = 2**18  # de-quantised at once: passes over them stay in the cache


class GGUFCheckpoint:
    """See models/weights.Checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = _import_gguf(path)
        self._file = GGUFFile(path)
        self._tensors = {gguf_names.hf_name(name): t for name, t in self._file.tensors.items()}
        self._check_kinds()
        metadata = self._file.metadata
        self._pairs = gguf_names.ARCHITECTURES[gguf_names.read_architecture(metadata, path)][2]
        self.config = gguf_names.hf_config(metadata, self.shapes(), self._rope_divisors(), path)
        self.tokenizer_path = path if "tokenizer.ggml.tokens" in metadata else None
        self.eos_token_ids = gguf_names.eos_token_ids(metadata)

    def _check_kinds(self) -> None:
        possible = {kind.value: kind.name for kind in self._gguf.quants._type_traits} | {0: "F32", 1: "F16"}
        unknown = [f"{name} (ggml type {t.kind})" for name, t in self._tensors.items() if t.kind not in possible]
        if unknown:
            raise CheckpointError(
                f"{self.path} has tensors of a type that this build cannot de-quantise: {listed(unknown)}; "
                f"possible: {', '.join(possible.values())}"
            )
        for name, tensor in self._tensors.items():
            block, _ = self._gguf.GGML_QUANT_SIZES[tensor.kind]
            if not tensor.shape or tensor.shape[-1] % block:
                raise self._file.broken(f"rows of {name} {tensor.shape} are no multiple of {block}")
            if tensor.begin + self._num_bytes(tensor) > len(self._file.map):
                raise self._file.broken(f"tensor {name} ends behind the file's {len(self._file.map)} bytes")

    def _num_bytes(self, tensor: GGUFTensor) -> int:
        block, block_bytes = self._gguf.GGML_QUANT_SIZES[tensor.kind]
        return int(np.prod(tensor.shape)) // block * block_bytes

    def _rope_divisors(self) -> list[float] | None:
        return self.read(_ROPE_DIVISORS).tolist() if _ROPE_DIVISORS in self._tensors else None

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items() if name != _ROPE_DIVISORS}

    def read(self, name: str) -> Tensor:
        """float32, a copy."""
        tensor = self._tensors[name]
        values = torch.from_numpy(self._dequantise(tensor))
        if self._pairs and (".q_proj." in name or ".k_proj." in name):
            return half_split(values, self.config["head_dim"])
        return values

    def _dequantise(self, tensor: GGUFTensor) -> np.ndarray:
        kind = self._gguf.GGMLQuantizationType(tensor.kind)
        row_bytes = self._num_bytes(tensor) // int(np.prod(tensor.shape[:-1]))
        data = np.frombuffer(self._file.map, np.uint8, self._num_bytes(tensor), tensor.begin).reshape(-1, row_bytes)
        out = np.empty((len(data), tensor.shape[-1]), np.float32)
        step = max(1, _CHUNK_VALUES // tensor.shape[-1])
        for start in range(0, len(data), step):
            rows = data[start : start + step]
            if kind.name in ("F32", "F16"):
                out[start : start + step] = rows.view(np.float32 if kind.name == "F32" else np.float16)
            elif not dequantise_quick(kind.name, rows, out[start : start + step]):
                out[start : start + step] = self._gguf.dequantize(rows, kind)
        return out.reshape(tensor.shape)

    def release(self, name: str) -> None:
        tensor = self._tensors[name]
        self._file.release(tensor.begin, tensor.begin + self._num_bytes(tensor))

    def digest(self) -> str:
        hasher = xxhash.xxh3_128(self._file.map[: self._file.data_begin])
        for tensor in self._tensors.values():
            for begin, end in sample_ranges(tensor.begin, tensor.begin + self._num_bytes(tensor)):
                hasher.update(self._file.map[begin:end])
        return hasher.hexdigest()


def half_split(values: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k, [H * D] or [H * D, C], from pair by pair (x0 y0 x1 y1 ..) to halves (x0 x1 .. y0 y1 ..)."""
    pairs = values.view(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)


def _import_gguf(path: Path) -> ModuleType:
    try:
        import gguf
    except ImportError:
        raise CheckpointError(f"{path} needs the gguf package: pip install 'tokenmill[gguf]'") from None
    return gguf
