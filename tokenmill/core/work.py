"""Work of a step in plain numbers: FLOPs and bytes, reported by models and kernels, priced by cost/."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """`flops`: multiply-add = 2. `weight_bytes`, `cache_bytes`: read once per step. All for one step."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.cache_bytes + other.cache_bytes,
        )

    def scaled(self, factor: float) -> Work:
        """`factor` such pieces of work, e.g. as many as there are layers."""
        return Work(self.flops * factor, self.weight_bytes * factor, self.cache_bytes * factor)
