"""Lightning indexer of CSA layers: score every visible compressed entry for a query, keep the best.

S_w = sum over heads h of weight_h * relu(q_h . key_w); a query keeps the index_topk visible entries with the
largest score, all of them when there are no more. Equal scores: the lower entry wins, in prefill and in decode.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class IndexerTopk(Protocol):
    def __call__(self, q: Tensor, weights: Tensor, keys: Tensor, num_visible: Tensor, topk: int) -> Tensor:
        """Chosen entries of queries of ONE sequence, ascending, -1 behind the last: [T, min(topk, M)] int64.

        q [T, H, D], weights [T, H], keys [M, D], all float32; num_visible [T] int64: query t sees entries
        0 .. num_visible[t] - 1, at most M.
        """
        ...
