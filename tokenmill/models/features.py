"""What a proposer may ask to see of its target's forward pass. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """
    layers   output of these layers (index i: after layer i), side by side: [T, len(layers) x C]
             (); the streams before the output head collapses them [T, N, C], which only some models have
    """

    layers: tuple[int, ...] = ()

    @property
    def are_streams(self) -> bool:
        return not self.layers
