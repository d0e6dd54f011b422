"""Float32 building blocks whose result for one row never depends on which other rows are computed with it.

The reference kernels are made of these and of operations that are exact in themselves (add, multiply, divide,
square root, maximum, comparison). Not responsible for: speed.

What was measured on torch 2.13 for CPU (MKL, 1 and 2 threads, M = 1..600, odd K and N) and is guarded by
tests/kernels/test_invariant.py:
- a matrix product gives a row the same bits whatever its neighbours as soon as the number of rows is a multiple
  of 8, except for fewer than 16 output columns, where columns are padded as well;
- exp, log, log1p, tanh, sin, cos, sqrt, rsqrt give an element the same bits at any place of any vector; silu,
  sigmoid, softplus, exp2 do not (their last few elements take a scalar path), so they are spelled out here;
- sums over the last dimension are row-wise below 32768 columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_MULTIPLE = 8
_MIN_COLUMNS = 16
_MAX_REDUCTION = 32768  # torch splits a longer reduction over threads when there are few rows
_ALIGNMENT_BYTES = 64  # MKL picks another kernel for operands that do not start on a cache line


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """[T, K] float32 x [N, K] float32 -> x @ weight.T, [T, N] float32, each row independent of the others."""
    num_rows, num_columns = x.shape[0], weight.shape[0]
    if num_columns < _MIN_COLUMNS:
        weight = F.pad(weight, (0, 0, 0, _MIN_COLUMNS - num_columns))
    out = F.linear(pad_rows(x), weight)
    return out[:num_rows, :num_columns]


def pad_rows(x: Tensor) -> Tensor:
    """[T, K] with zero rows up to a multiple of 8; contiguous and aligned to a cache line."""
    missing = -x.shape[0] % ROW_MULTIPLE
    if missing:
        return F.pad(x, (0, 0, 0, missing))
    return (
        x
        if x.is_contiguous() and x.data_ptr() % _ALIGNMENT_BYTES == 0
        else x.clone(memory_format=torch.contiguous_format)
    )


def batched_matmul(x: Tensor, y: Tensor) -> Tensor:
    """[B, M, K] x [B, K, N] float32 -> [B, M, N], each of the B products independent of the others.

    Measured as above: a product of the batch keeps its bits if M is a multiple of 8, K and N of 16 (otherwise its
    place in the batch changes its alignment and with it MKL's kernel).
    """
    num_rows, num_columns = x.shape[1], y.shape[2]
    missing_rows, missing_inner, missing_columns = -num_rows % 8, -x.shape[2] % 16, -num_columns % 16
    if missing_rows or missing_inner:
        x = F.pad(x, (0, missing_inner, 0, missing_rows))
    if missing_inner or missing_columns:
        y = F.pad(y, (0, missing_columns, 0, missing_inner))
    return torch.bmm(x, y)[:, :num_rows, :num_columns]


def mean_square(x: Tensor) -> Tensor:
    """[..., C] float32 -> [..., 1], mean of squares of each row."""
    assert x.shape[-1] < _MAX_REDUCTION, f"rows of {x.shape[-1]} are not summed independently (limit {_MAX_REDUCTION})"
    return x.square().mean(-1, keepdim=True)


def sigmoid(x: Tensor) -> Tensor:
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x / (1.0 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) without overflow: max(x, 0) + log1p(e^-|x|)."""
    return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))
