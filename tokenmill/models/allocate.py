"""Memory for cache tensors: zero, aligned to a page, and taken from the system only as it is first written.

torch.zeros writes all of it at once, so that a server would hold its whole KV budget from the first second.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A zero tensor on anonymous pages."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.zeros(tuple(shape), dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8).view(dtype).view(tuple(shape))
