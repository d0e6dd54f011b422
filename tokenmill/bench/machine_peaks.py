"""What this machine can do at most, measured here and now: bytes read per second, multiply-adds per second.

Not responsible for: what some program makes of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

_BUFFER_BYTES = 2**29  # far beyond any cache
_MATRIX = 1536


@dataclass(frozen=True, slots=True)
class Peaks:
    """Best of several short loops, with the threads that torch uses."""

    read_bytes_per_s: float
    flops_per_s: float
    num_threads: int

    def seconds(self, num_bytes: float, flops: float) -> float:
        """The roofline: nothing takes less than the larger of reading and computing."""
        return max(num_bytes / self.read_bytes_per_s, flops / self.flops_per_s)

    def best(self, other: Peaks) -> Peaks:
        return Peaks(
            max(self.read_bytes_per_s, other.read_bytes_per_s),
            max(self.flops_per_s, other.flops_per_s),
            self.num_threads,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_peaks(dtype: torch.dtype, repeats: int = 6, buffer_bytes: int | None = None) -> Peaks:
    """Sums over a buffer larger than the caches; square matrix products in `dtype` and in float32, the better one."""
    buffer = torch.ones((buffer_bytes or _BUFFER_BYTES) // 4)
    read_s = _best_s(lambda: buffer.sum(), repeats)
    product_s = min(_best_s(_product(kind), repeats) for kind in {dtype, torch.float32})
    return Peaks(buffer.numel() * 4 / read_s, 2.0 * _MATRIX**3 / product_s, torch.get_num_threads())


def step_clock() -> Callable[[], float]:
    """Seconds of this thread's CPU where it works alone, which other programs hardly disturb; else of the wall."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def _product(dtype: torch.dtype) -> Callable[[], object]:
    a, b = (torch.randn(_MATRIX, _MATRIX).to(dtype) for _ in range(2))
    return lambda: a @ b


def _best_s(run: Callable[[], object], repeats: int) -> float:
    clock = step_clock()
    run()
    seconds = []
    for _ in range(repeats):
        began_s = clock()
        run()
        seconds.append(clock() - began_s)
    return min(seconds)
