"""Token-level compression of V4: many tokens' kv rows become one cached entry through a softmax per channel.

CSA (ratio 4, overlapping): entry w pools part A (channels 0..D) of tokens 4w-4 .. 4w-1 and part B (D..2D) of
tokens 4w .. 4w+3. HCA (ratio r): entry w pools tokens r w .. r w + r - 1 and is accumulated online, token by
token, so that its open window is three vectors instead of up to r rows.
Not responsible for: norm, rotation, storage, or which rows belong to which window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class OnlineState:
    """Softmax-weighted sum so far, per lane and channel: [lanes, D] float32 each.

    maximum -inf, total 0, weighted 0 is a window without tokens.
    """

    maximum: Tensor
    total: Tensor
    weighted: Tensor


class PoolOverlap(Protocol):
    def __call__(self, kv: Tensor, gate: Tensor) -> Tensor:
        """kv, gate [n, 8, D] float32: the eight rows of each entry -> [n, D].

        A row that does not exist (before the sequence) has gate -inf and value 0.
        """
        ...


class PoolOnline(Protocol):
    def __call__(
        self, state: OnlineState, kv: Tensor, gate: Tensor, first_row: Tensor, num_rows: Tensor
    ) -> OnlineState:
        """Advance every lane over its own rows, in order.

        kv, gate [T, D] float32 (gate with the position bias added); lane l takes rows first_row[l] ..
        first_row[l] + num_rows[l]. Exact: lanes and calls may be cut anywhere, the bits stay the same.
        """
        ...
