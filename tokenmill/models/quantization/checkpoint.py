"""A checkpoint of quantised modules, read as plain numbers or as it is packed. Not responsible for: layouts, models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.quantized.packed import QuantizedTensor
from tokenmill.models.quantization.layouts import IGNORED_ENDINGS, PART_ENDINGS, check_scales, from_parts, is_quantized
from tokenmill.models.weights import Checkpoint

_METHODS = ("modelopt", "compressed-tensors", "fp8")


def expand_quantized(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, its quantised modules readable as plain `weight`s; itself where nothing is quantised so.

    CheckpointError for a quantisation that nothing here reads.
    """
    method = _method(checkpoint.config)
    if method is not None and method not in _METHODS:
        raise CheckpointError(
            f"{checkpoint.path}: quantization_config.quant_method={method!r} is not supported: possible: "
            f"{', '.join(_METHODS)}; use another conversion of the model, or the original"
        )
    modules = _modules(checkpoint.shapes())
    if any(is_quantized(parts) for parts in modules.values()):
        return QuantizedCheckpoint(checkpoint, modules)
    return checkpoint


def _method(config: Mapping[str, Any]) -> str | None:
    quantization = config.get("quantization_config")
    return str(quantization.get("quant_method")) if isinstance(quantization, dict) else None


def _modules(names: Mapping[str, object]) -> dict[str, dict[str, str]]:
    """module -> ending -> stored name, of modules that have more than a `weight`."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        module, _, ending = name.rpartition(".")
        if ending in PART_ENDINGS:
            found.setdefault(module, {})[ending] = name
    for module, parts in found.items():
        if f"{module}.weight" in names:
            parts["weight"] = f"{module}.weight"
    return found


class QuantizedCheckpoint:
    """Implements models/weights.Checkpoint over another one; each tensor is what its own parts say."""

    def __init__(self, inner: Checkpoint, modules: Mapping[str, Mapping[str, str]]) -> None:
        self._inner = inner
        self.path = inner.path
        self.tokenizer_path = inner.tokenizer_path
        self.eos_token_ids = inner.eos_token_ids
        self.config = dict(inner.config)
        if _method(inner.config) in ("modelopt", "compressed-tensors"):
            del self.config["quantization_config"]  # a model need not know; V4's own stays, for its other tensors
        self._parts = {f"{module}.weight": dict(parts) for module, parts in modules.items() if is_quantized(parts)}
        hidden = {name for parts in self._parts.values() for name in parts.values()}
        shapes = inner.shapes()
        self._plain = [n for n in shapes if n not in hidden and n.rpartition(".")[2] not in IGNORED_ENDINGS]
        # Opening a tensor is a view of the mapped file; a layout that is not known shows itself here.
        self._shapes = {name: shapes[name] for name in self._plain}
        self._shapes |= {name: self._open(name).shape for name in self._parts}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Quantised ones as float32, a copy."""
        packed = self.read_packed(name)
        return self._inner.read(name) if packed is None else packed.dequantize()

    def read_packed(self, name: str) -> QuantizedTensor | None:
        """As it is stored, perhaps views of the file until `release`; None for a plain tensor."""
        if name not in self._parts:
            return None
        packed = self._open(name)
        check_scales(name.removesuffix(".weight"), packed)
        return packed

    def release(self, name: str) -> None:
        for stored in self._parts[name].values() if name in self._parts else (name,):
            self._inner.release(stored)

    def digest(self) -> str:
        return self._inner.digest()

    def _open(self, name: str) -> QuantizedTensor:
        parts = {ending: self._inner.read(stored) for ending, stored in self._parts[name].items()}
        return from_parts(name.removesuffix(".weight"), parts)
