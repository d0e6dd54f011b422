"""Copy a checkpoint's tensors into a model's parameters: names and shapes compared first, values checked after.

A model hands over destinations: checkpoint name -> tensor to fill, which may be a slice of a fused parameter.
Peak memory is the destinations plus one source tensor. Not responsible for: where tensors come from (weights.py).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.models.weights import Checkpoint, listed


def fill(checkpoint: Checkpoint, destinations: Mapping[str, Tensor], ignored: Sequence[str] = ()) -> None:
    """Fill every destination, converting to its dtype.

    ignored   patterns (fnmatch) of names that may be in the checkpoint without being wanted
    Missing, unknown, misshaped and non-finite tensors raise one CheckpointError that lists them.
    """
    check_names(checkpoint, {name: tuple(tensor.shape) for name, tensor in destinations.items()}, ignored)
    broken = [name for name, destination in destinations.items() if not _copy(checkpoint, name, destination)]
    if broken:
        raise CheckpointError(f"{checkpoint.path} holds values that are not finite: {listed(broken)}")


def check_names(checkpoint: Checkpoint, wanted: Mapping[str, tuple[int, ...]], ignored: Sequence[str] = ()) -> None:
    """Compare names and shapes; raise one CheckpointError with everything that differs."""
    found = checkpoint.shapes()
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted and not any(fnmatch.fnmatch(name, p) for p in ignored)]
    misshaped = [
        f"{name} {found[name]} instead of {shape}"
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


def _copy(checkpoint: Checkpoint, name: str, destination: Tensor) -> bool:
    """Copy one tensor; False when a value is infinite or not a number."""
    destination.copy_(checkpoint.read(name))
    checkpoint.release(name)
    return is_finite(destination)


def is_finite(tensor: Tensor) -> bool:
    """One pass without a temporary: infinity and NaN survive a sum, and finite weights cannot overflow it."""
    return tensor.numel() == 0 or bool(torch.isfinite(tensor.sum(dtype=torch.float32)))
