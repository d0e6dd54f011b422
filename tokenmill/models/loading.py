"""Copy a checkpoint's tensors into a model's parameters: names and shapes compared first, values checked after.

Peak memory is what has been loaded plus one source tensor. Not responsible for: where tensors come from
(weights.py), how a kernel packs them.
"""

from __future__ import annotations

import ctypes
import fnmatch
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.quantized.packed import QuantizedTensor
from tokenmill.models.weights import Checkpoint, listed

T = TypeVar("T")
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def check_names(checkpoint: Checkpoint, wanted: Mapping[str, tuple[int, ...]], ignored: Sequence[str] = ()) -> None:
    """Compare names and shapes; raise one CheckpointError with everything that is missing, unknown or misshaped.

    ignored   patterns (fnmatch) of names that may be in the checkpoint without being wanted
    """
    found = checkpoint.shapes()
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted and not any(fnmatch.fnmatch(name, p) for p in ignored)]
    misshaped = [
        f"{name} {tuple(found[name])} instead of {tuple(shape)}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    kinds = (("missing", missing), ("unknown", extra), ("misshaped", misshaped))
    problems = [f"{kind} ({len(names)}): {listed(names)}" for kind, names in kinds if names]
    if problems:
        raise CheckpointError(
            f"{checkpoint.path} does not fit its config. {'; '.join(problems)}. "
            "Check that config.json and the weights belong together"
        )


class Loader:
    """Reads checked tensors one by one in the model's dtype; `finish` raises if a value was not finite.

    on_progress   called with the loaded share of all wanted values, 0..1
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        wanted: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        *,
        ignored: Sequence[str] = (),
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        check_names(checkpoint, wanted, ignored)
        self._checkpoint = checkpoint
        self._shapes = dict(wanted)
        self._dtype = dtype
        self._on_progress = on_progress
        self._left = set(wanted)
        self._num_values = sum(math.prod(shape) for shape in wanted.values())
        self._num_loaded = 0
        self._broken: list[str] = []

    def tensor(self, name: str) -> Tensor:
        return self.stacked([name])

    def stacked(self, names: Sequence[str]) -> Tensor:
        """The named tensors one below the other (dimension 0), as a fused projection wants them."""
        rows = sum(self._shapes[name][0] for name in names)
        out = torch.empty(rows, *self._shapes[names[0]][1:], dtype=self._dtype)
        start = 0
        for name in names:
            part = out[start : start + self._shapes[name][0]]
            self._copy(name, part)
            start += len(part)
        return out

    def packed(self, names: Sequence[str], make: Callable[[list[QuantizedTensor]], T]) -> T | None:
        """`make` with the named tensors as the checkpoint packs them; None, nothing read, unless it packs them all."""
        read = getattr(self._checkpoint, "read_packed", None)
        if read is None:
            return None
        parts = [read(name) for name in names]
        if any(part is None for part in parts):
            return None
        made = make(parts)
        for name in names:
            self._done(name, math.prod(self._shapes[name]))
        return made

    def _copy(self, name: str, destination: Tensor) -> None:
        destination.copy_(self._checkpoint.read(name))
        if not is_finite(destination):
            self._broken.append(name)
        self._done(name, destination.numel())

    def _done(self, name: str, num_values: int) -> None:
        self._checkpoint.release(name)
        self._left.discard(name)
        self._num_loaded += num_values
        if self._on_progress is not None:
            self._on_progress(self._num_loaded / self._num_values)

    def trim(self) -> None:
        """Give freed memory back to the system, e.g. after each layer: plain weights of many sizes, dropped once
        they are packed, would leave holes that add up to a third of the model."""
        trim = getattr(_LIBC, "malloc_trim", None)  # glibc has it; other allocators return memory by themselves
        if trim is not None:
            trim(0)

    def finish(self) -> None:
        assert not self._left, f"wanted but never read: {sorted(self._left)[:10]}"
        if self._broken:
            raise CheckpointError(
                f"{self._checkpoint.path} holds values that are not finite in {listed(self._broken)}: "
                "the file is damaged or was converted wrongly; fetch the model again"
            )


def is_finite(tensor: Tensor) -> bool:
    """One pass without a temporary: infinity and NaN survive a sum, and finite weights cannot overflow it."""
    return tensor.numel() == 0 or bool(torch.isfinite(tensor.sum(dtype=torch.float32)))
