"""Indexer scores and selection in float32, in tiles that bound memory and do not change a bit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels import invariant

_KEY_MULTIPLE = 64
_MAX_PRODUCTS = 2**22  # elements of [T, H, keys] alive at once, 16 MiB


def indexer_topk(q: Tensor, weights: Tensor, keys: Tensor, num_visible: Tensor, topk: int) -> Tensor:
    num_keys = keys.shape[0]
    width = min(topk, num_keys)
    if width == num_keys:  # every visible entry is kept: nothing to score
        entries = torch.arange(num_keys).expand(len(num_visible), -1)
        return entries.masked_fill(entries >= num_visible[:, None], -1)
    scores = indexer_scores(q, weights, keys)
    scores = scores.masked_fill(torch.arange(num_keys) >= num_visible[:, None], -torch.inf)
    return select_topk(scores, num_visible, width)


def indexer_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """[T, H, D], [T, H], [M, D] -> [T, M]; a score does not depend on which other queries or keys are scored."""
    num_rows, num_heads, _ = q.shape
    out = torch.empty(num_rows, keys.shape[0])
    row_step = max(1, _MAX_PRODUCTS // (num_heads * 4096))
    for key_begin in range(0, keys.shape[0], 4096):
        tile = keys[key_begin : key_begin + 4096]
        padded = F.pad(tile, (0, 0, 0, -len(tile) % _KEY_MULTIPLE))
        for begin in range(0, num_rows, row_step):
            rows = slice(begin, begin + row_step)
            products = invariant.matmul(q[rows].flatten(0, 1), padded).unflatten(0, (-1, num_heads))
            scores = (products.relu() * weights[rows, :, None]).sum(1)
            out[rows, key_begin : key_begin + len(tile)] = scores[:, : len(tile)]
    return out


def select_topk(scores: Tensor, num_visible: Tensor, width: int) -> Tensor:
    """[T, M] with -inf where invisible -> the `width` best per row, ascending, ties to the lower entry, -1 padded."""
    threshold = scores.topk(width, dim=-1).values[:, -1:]
    above = scores > threshold
    tied = scores == threshold
    room = width - above.sum(-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(-1) <= room))
    chosen &= torch.arange(scores.shape[1]) < num_visible[:, None]
    row, entry = chosen.nonzero(as_tuple=True)  # in row order, entries ascending
    counts = chosen.sum(-1)
    place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    best = torch.full((len(scores), width), -1)
    best[row, place] = entry
    return best
