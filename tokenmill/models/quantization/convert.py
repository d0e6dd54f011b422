"""Quantise a checkpoint into a folder, tensor by tensor and in parts of their rows, so that memory does not grow.

A shard has its name once it is whole; config.json comes last, so that what is unfinished cannot be loaded. A second
run goes on after the last whole shard. Not responsible for: rounding, layouts, measuring the model's quality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tokenmill
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.quantized.packed import BITS, GROUPS, QuantizedTensor, Scheme
from tokenmill.kernels.quantized.rounding import Recipe, check_finite, check_groups, check_recipe, quantize
from tokenmill.models.quantization.folder import OutputFolder
from tokenmill.models.quantization.layouts import Layout, check_writable, to_parts
from tokenmill.models.quantization.targets import choose_targets, sharing
from tokenmill.models.safetensors_write import SafetensorsWriter
from tokenmill.models.weights import Checkpoint

_CHUNK_VALUES = 2**21
_BLOCK = 128
Tell = Callable[[str, int, int], None]
Stored = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Settings:
    """
    exclude      patterns of tensors that stay as they are
    shard_bytes  about the size of one output file
    """

    scheme: Scheme
    recipe: Recipe
    layout: Layout
    experts_only: bool = False
    exclude: tuple[str, ...] = ()
    shard_bytes: int = 4_000_000_000

    def check(self) -> None:
        check_recipe(self.scheme, self.recipe)
        check_writable(self.layout, self.scheme)


def check_plain_source(checkpoint: Checkpoint) -> None:
    """CheckpointError for a source that is quantised itself: its errors would add up unseen."""
    config = checkpoint.config.get("quantization_config")
    method = config.get("quant_method", "unknown") if isinstance(config, dict) else None
    if method is None:
        odd = next((n for n in checkpoint.shapes() if n.endswith((".weight_scale", ".weight_packed", ".scale"))), None)
        method = odd and f"unnamed: it holds {odd}"
    if method is not None:
        raise CheckpointError(f"{checkpoint.path} is quantised already ({method}): give the unquantised model")


def quantize_checkpoint(source: Checkpoint, dest: Path, settings: Settings, tell: Tell) -> dict[str, Any]:
    """Write folder `dest`; the report, also in quantize_report.json. tell(what, done, total) in bytes read."""
    settings.check()
    check_plain_source(source)
    job = _Job(source, settings)
    folder = OutputFolder(dest, {"source": source.digest(), **asdict(settings), "shard_bytes": settings.shard_bytes})
    tensors: list[dict[str, Any]] = []
    for index, names in enumerate(job.shards):
        done = folder.finished(index)
        if done is None:
            done = []
            stored = {k: v for name in names for k, v in job.stored(name).items()}
            with SafetensorsWriter(folder.shard(index), stored, {"format": "pt", "nibble_order": "even_low"}) as writer:
                for name in names:
                    tell(name, job.num_read, job.num_values)
                    done += job.write(name, writer)
            folder.finish_shard(index, done)
        else:
            job.skip(names)
        tensors += done
    tell("finishing", job.num_values, job.num_values)
    report = _report(source, settings, tensors)
    names_of = [[stored for name in names for stored in job.stored(name)] for names in job.shards]
    ignored = [n.removesuffix(".weight") for n, s in source.shapes().items() if len(s) == 2 and n not in job.targets]
    total = sum(math.prod(shape) * dtype.itemsize for n in source.shapes() for dtype, shape in job.stored(n).values())
    folder.complete(source, settings, names_of, total, ignored, report)
    return report


class _Job:
    """What each tensor of the source becomes."""

    def __init__(self, source: Checkpoint, settings: Settings) -> None:
        self._source, self._settings = source, settings
        self._shapes = source.shapes()
        self.targets = set(choose_targets(self._shapes, experts_only=settings.experts_only, exclude=settings.exclude))
        for name in self.targets:
            check_groups(self._shapes[name], settings.scheme, name)
        self._dtypes = {name: source.read(name).dtype for name in self._shapes}
        self._largest: dict[str, float] = {}
        self.num_values = sum(math.prod(shape) for shape in self._shapes.values())
        self.num_read = 0
        self.shards = self._split()

    def _split(self) -> list[list[str]]:
        shards: list[list[str]] = [[]]
        size = 0
        for name in self._shapes:
            num_bytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.stored(name).values())
            if shards[-1] and size + num_bytes > self._settings.shard_bytes:
                shards.append([])
                size = 0
            shards[-1].append(name)
            size += num_bytes
        return shards

    def stored(self, name: str) -> Stored:
        if name not in self.targets:
            return {name: (self._dtypes[name], tuple(self._shapes[name]))}
        rows, columns = self._shapes[name]
        parts = to_parts(_shape_of(self._settings.scheme, rows, columns), self._settings.layout)
        module = name.removesuffix("weight")
        return {f"{module}{ending}": (part.dtype, tuple(part.shape)) for ending, part in parts.items()}

    def skip(self, names: Sequence[str]) -> None:
        self.num_read += sum(math.prod(self._shapes[name]) for name in names)

    def write(self, name: str, writer: SafetensorsWriter) -> list[dict[str, Any]]:
        """Report lines: one for a quantised tensor."""
        lines = [self._write_quantized(name, writer)] if name in self.targets else []
        if not lines:
            for _, rows in _chunks(self._source.read(name)):
                if rows.is_floating_point() and rows.dtype.itemsize > 1:
                    check_finite(rows, name)
                writer.append(name, rows)
                self._source.release(name)  # pages of rows that are done; what follows is read anew
        self._source.release(name)
        self.skip([name])
        return lines

    def _write_quantized(self, name: str, writer: SafetensorsWriter) -> dict[str, Any]:
        settings, module = self._settings, name.removesuffix("weight")
        weight = self._source.read(name)
        largest = self._shared_largest(name) if settings.scheme == "nvfp4" else None
        sums = _Errors()
        for begin, rows in _chunks(weight):
            quantized = quantize(rows, settings.scheme, settings.recipe, name=name, largest=largest)
            sums.add(rows.float(), quantized)
            for ending, part in to_parts(quantized, settings.layout).items():
                if ending == "weight_shape":
                    part = torch.tensor(weight.shape, dtype=torch.int64)
                if begin == 0 or part.dim() >= 2:
                    writer.append(module + ending, part)
            self._source.release(name)
        return sums.line(name, weight)

    def _shared_largest(self, name: str) -> float:
        for member in sharing(name, self.targets):
            if member not in self._largest:
                weight = self._source.read(member)
                for _, rows in _chunks(weight):
                    check_finite(rows, member)
                    top = float(rows.abs().max()) if rows.numel() else 0.0
                    self._largest[member] = max(top, self._largest.get(member, 0.0))
                    self._source.release(member)
        return max(self._largest[member] for member in sharing(name, self.targets))


def _shape_of(scheme: Scheme, rows: int, columns: int) -> QuantizedTensor:
    """Without storage: what a quantised [rows, columns] looks like."""
    group = GROUPS[scheme]
    codes = {"nvfp4": torch.uint8, "mxfp4": torch.uint8, "int4": torch.uint8, "int8": torch.int8}
    dtype = {"nvfp4": torch.float8_e4m3fn, "mxfp4": torch.float8_e8m0fnu, "int4": torch.float16}
    scale = (rows, columns // group) if group else (rows, 1)
    if scheme == "fp8_block":
        scale = (-(-rows // _BLOCK), -(-columns // _BLOCK))
    return QuantizedTensor(
        scheme,
        torch.empty(rows, columns * BITS[scheme] // 8, dtype=codes.get(scheme, torch.float8_e4m3fn), device="meta"),
        torch.empty(scale, dtype=dtype.get(scheme, torch.float32), device="meta"),
        torch.empty((), device="meta") if scheme == "nvfp4" else None,
    )


def _chunks(tensor: Tensor) -> Iterable[tuple[int, Tensor]]:
    """(first row, rows), from a block's edge; a tensor without rows whole."""
    if tensor.dim() == 0:
        yield 0, tensor
        return
    per_row = max(1, tensor[:1].numel())
    step = max(1, _CHUNK_VALUES // per_row // _BLOCK) * _BLOCK
    for begin in range(0, tensor.shape[0], step):
        yield begin, tensor[begin : begin + step]


class _Errors:
    def __init__(self) -> None:
        self._error = self._size = 0.0
        self._worst = 0.0
        self._num_bytes = 0

    def add(self, rows: Tensor, quantized: QuantizedTensor) -> None:
        wrong = quantized.dequantize() - rows
        self._error += float(wrong.double().square().sum())
        self._size += float(rows.double().square().sum())
        self._worst = max(self._worst, float(wrong.abs().max()) if wrong.numel() else 0.0)
        self._num_bytes += quantized.num_bytes

    def line(self, name: str, weight: Tensor) -> dict[str, Any]:
        return {
            "name": name,
            "shape": list(weight.shape),
            "relative_error": math.sqrt(self._error / self._size) if self._size else 0.0,
            "largest_error": self._worst,
            "source_bytes": weight.nbytes,
            "bytes": self._num_bytes,
        }


def _report(source: Checkpoint, settings: Settings, tensors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    errors = sorted(line["relative_error"] for line in tensors)
    return {
        "tokenmill": tokenmill.__version__,
        "source": str(source.path),
        "source_is_dequantised": source.path.suffix == ".gguf",
        "settings": asdict(settings),
        "num_tensors": len(tensors),
        "bytes": sum(line["bytes"] for line in tensors),
        "source_bytes": sum(line["source_bytes"] for line in tensors),
        "relative_error_mean": sum(errors) / len(errors),
        "relative_error_max": errors[-1],
        "tensors": list(tensors),
    }


def check_destination(source: Path, dest: Path) -> None:
    if source.resolve() == dest.resolve():
        raise ConfigError(f"{dest} is the source itself: give another folder")
