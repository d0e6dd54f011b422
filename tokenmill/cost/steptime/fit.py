"""Fits a MeasuredStepTime to measured steps: least relative errors with costs that are never negative.

Pure. Not responsible for: which steps are measured (bench/calibrate), or files (calibration).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import KeyRead
from tokenmill.cost.steptime.measured import MeasuredStepTime, terms
from tokenmill.cost.steptime.shape import StepShape

#: Sizes of steps between which times are interpolated, as far as they were measured.
_NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_ROUNDS = 2000
_FEWEST_STEPS = 12
_REWEIGHTED, _SMALL_ERROR = 8, 0.02


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    shape: StepShape
    seconds: float


def fit_measured(steps: Sequence[MeasuredStep], keys: Sequence[KeyRead]) -> MeasuredStepTime:
    """ConfigError when there are too few steps, or all of one size."""
    sizes = sorted({round(step.shape.num_tokens) for step in steps})
    if len(steps) < _FEWEST_STEPS or len(sizes) < 2:
        raise ConfigError(f"{len(steps)} steps of {len(sizes)} sizes cannot be fitted: measure more")
    nodes = _nodes(sizes)
    features = np.array([[*_hats(step.shape.num_tokens, nodes), *terms(keys, step.shape)] for step in steps])
    seconds = np.array([step.seconds for step in steps])
    weights = np.ones(len(steps))
    for _ in range(_REWEIGHTED):
        costs = _nonnegative(features * (weights / seconds)[:, None], weights)
        ratio = seconds / np.maximum(features @ costs, 1e-12)
        # Squares over absolute errors are absolute errors: a step that was interrupted does not pull the others.
        weights = 1.0 / np.sqrt(np.maximum(np.abs(1.0 - 1.0 / ratio), _SMALL_ERROR))
    rows_s = np.maximum.accumulate(costs[: len(nodes)])
    decode, chunk, sampled, decode_flop, prefill_flop = (float(c) for c in costs[len(nodes) :])
    off = np.abs(np.log(ratio))
    return MeasuredStepTime(
        rows=tuple(float(n) for n in nodes),
        rows_s=tuple(float(s) for s in rows_s),
        decode_seq_s=decode,
        chunk_s=chunk,
        sampled_s=sampled,
        decode_flop_s=decode_flop,
        prefill_flop_s=prefill_flop,
        keys=tuple(keys),
        range_factor=float(max(1.02, math.exp(np.quantile(off, 0.8)))),
    )


def _nodes(sizes: Sequence[int]) -> list[int]:
    """Those around a measured size, and the largest size itself."""
    inside = [n for n in _NODES if n < sizes[-1] and any(n / 2 < size < n * 2 for size in sizes)]
    nodes = sorted({*inside, sizes[-1]})
    return nodes if len(nodes) > 1 else [sizes[0], sizes[-1]]


def _hats(size: float, nodes: Sequence[int]) -> list[float]:
    """Weights of the table's entries in linear interpolation at `size`; below the first entry, the line goes on."""
    weights = [0.0] * len(nodes)
    i = next((i for i in range(1, len(nodes)) if size <= nodes[i]), len(nodes) - 1)
    share = (size - nodes[i - 1]) / (nodes[i] - nodes[i - 1])
    weights[i - 1], weights[i] = 1.0 - share, share
    return weights


def _nonnegative(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """min |features x - target| with x >= 0, by coordinate descent on scaled columns."""
    scale = np.maximum(np.linalg.norm(features, axis=0), 1e-30)
    scaled = features / scale
    gram, rhs = scaled.T @ scaled, scaled.T @ target
    x = np.zeros(len(scale))
    for _ in range(_ROUNDS):
        before = x.copy()
        for j in range(len(x)):
            gain = rhs[j] - gram[j] @ x + gram[j, j] * x[j]
            x[j] = max(0.0, gain / gram[j, j]) if gram[j, j] > 0 else 0.0
        if np.max(np.abs(x - before)) < 1e-10:
            break
    return np.asarray(x / scale)


def fit_served(alone_s: Sequence[float], served_s: Sequence[float]) -> tuple[float, float]:
    """(factor >= 1, fixed seconds >= 0) such that served = factor x alone + fixed, in relative errors."""
    alone, served = np.array(alone_s), np.array(served_s)
    extra = _nonnegative(np.stack([alone / served, 1.0 / served], axis=1), np.maximum(1.0 - alone / served, 0.0))
    return 1.0 + float(extra[0]), float(extra[1])
