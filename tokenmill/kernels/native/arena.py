"""Memory for packed weights: cut one after the other out of large slabs that the system may back with huge pages.

A decode step reads every weight once: with pages of 4 KiB it would look up an address every 64 lines, and a matrix of
its own rarely fills a huge page. Not responsible for: what lies in it (pack.py).
"""

from __future__ import annotations

import mmap
from threading import Lock

import torch
from torch import Tensor

_HUGE = 2 * 2**20
_SLAB = 32 * 2**20
_LINE = 64


class Arena:
    """A slab lives as long as a tensor out of it does (the newest one as long as the arena)."""

    def __init__(self, slab_bytes: int = _SLAB) -> None:
        self._slab_bytes = slab_bytes
        self._lock = Lock()
        self._slab: mmap.mmap | None = None
        self._at = self._end = 0

    def take(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes], zero, aligned to a cache line; a storage of its own."""
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            if self._slab is None or self._at + num_bytes > self._end:
                self._open(num_bytes)
            assert self._slab is not None
            taken = torch.frombuffer(self._slab, dtype=torch.uint8, count=num_bytes, offset=self._at)
            self._at += num_bytes + -num_bytes % _LINE
            return taken

    def _open(self, num_bytes: int) -> None:
        size = max(self._slab_bytes, num_bytes + -num_bytes % _HUGE)
        self._slab = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared: never huge
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._slab.madvise(mmap.MADV_HUGEPAGE)
        self._at = -torch.frombuffer(self._slab, dtype=torch.uint8, count=1).data_ptr() % _HUGE
        self._end = self._at + size


#: Of this process.
ARENA = Arena()
