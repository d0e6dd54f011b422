"""Muon for matrices, AdamW for everything else. Not responsible for gradients or for schedules.

Muon: momentum, then the nearest (semi-)orthogonal matrix by a Newton-Schulz iteration (K. Jordan, "Muon: An optimizer
for hidden layers in neural networks", 2024); experts and groups are batches of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    muon: float = 0.014
    adam: float = 0.002
    embedding: float = 0.006
    muon_decay: float = 0.05
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)


@dataclass(slots=True)
class Parameter:
    """One tensor that learns. splits: rows of the matrices that lie below one another in its last two dimensions,
    for Muon; empty: by AdamW."""

    name: str
    value: Tensor
    splits: tuple[int, ...]
    rate: float
    state: dict[str, Tensor] = field(default_factory=dict)


class Optimiser:
    """Ranks share the orthogonalisation: each does its part of the matrices, then the updates are added up."""

    def __init__(self, parameters: list[Parameter], rates: Rates, rank: int = 0, num_ranks: int = 1) -> None:
        self._rates, self._rank, self._num_ranks = rates, rank, num_ranks
        self._matrices = [p for p in parameters if p.splits]
        self._owner = _owners(self._matrices, num_ranks)
        self.parameters = parameters
        for p in parameters:
            names = ("momentum",) if p.splits else ("mean", "square")
            p.state = {name: torch.zeros_like(p.value) for name in names}

    @torch.no_grad()
    def step(self, gradients: list[Tensor], number: int, factor: float) -> None:
        """factor: of the schedule. number counts from 1."""
        of = {p.name: gradient for p, gradient in zip(self.parameters, gradients, strict=True)}
        for p in self.parameters:
            if not p.splits:
                self._adam(p, of[p.name], number, factor)
        for p, update in zip(self._matrices, self._updates(of), strict=True):
            rate = p.rate * factor
            p.value.mul_(1 - rate * self._rates.muon_decay).add_(update, alpha=-rate)

    def _updates(self, gradients: dict[str, Tensor]) -> list[Tensor]:
        updates = []
        for p, owner in zip(self._matrices, self._owner, strict=True):
            gradient = gradients[p.name]
            momentum = p.state["momentum"].lerp_(gradient, 1 - self._rates.momentum)
            is_mine = owner == self._rank
            wish = gradient.lerp(momentum, self._rates.momentum)
            updates.append(_orthogonal_parts(wish, p.splits) if is_mine else torch.zeros_like(wish))
        if self._num_ranks > 1:
            flat = torch.cat([update.flatten() for update in updates])
            dist.all_reduce(flat)
            parts = flat.split([update.numel() for update in updates])
            updates = [part.view_as(update) for part, update in zip(parts, updates, strict=True)]
        return updates

    def _adam(self, p: Parameter, gradient: Tensor, number: int, factor: float) -> None:
        b1, b2 = self._rates.betas
        mean, square = p.state["mean"].lerp_(gradient, 1 - b1), p.state["square"]
        square.mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        root = (square / (1 - b2**number)).sqrt_().add_(1e-10)
        p.value.addcdiv_(mean, root, value=-p.rate * factor / (1 - b1**number))


def _owners(matrices: list[Parameter], num_ranks: int) -> list[int]:
    """Largest first, each to the rank with the least so far."""
    load, owner = [0] * num_ranks, [0] * len(matrices)
    for i in sorted(range(len(matrices)), key=lambda i: -matrices[i].value.numel()):
        owner[i] = load.index(min(load))
        load[owner[i]] += matrices[i].value.numel()
    return owner


def _orthogonal_parts(matrix: Tensor, splits: tuple[int, ...]) -> Tensor:
    parts = [orthogonal(part) * max(1.0, part.shape[-2] / part.shape[-1]) ** 0.5 for part in matrix.split(splits, -2)]
    return torch.cat(parts, dim=-2)


def orthogonal(matrix: Tensor) -> Tensor:
    """[..., M, N] -> about U V^T of its singular value decomposition; bfloat16 is enough for a direction."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if is_tall else x).float()
