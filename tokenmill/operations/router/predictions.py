"""Blocks that a worker does not hold yet and will soon, because a request with them was just sent there.

So that siblings that arrive together are sent together, before any event can tell. Every eighth block is written
down: what is predicted is always a whole prefix. Not responsible for: what workers hold (index.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenmill.operations.router.hits import Run, leading_runs

_STRIDE = 8


@dataclass(frozen=True, slots=True)
class _Prediction:
    worker: int
    hashes: tuple[bytes, ...]


class Predictions:
    """limit: requests with a prediction at once; the oldest are forgotten beyond it."""

    def __init__(self, limit: int = 16_384) -> None:
        self._limit = limit
        self._of_request: dict[str, _Prediction] = {}
        self._counts: dict[bytes, dict[int, int]] = {}
        self._workers_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._of_request)

    def add(self, request_id: str, worker: int, hashes: Sequence[bytes]) -> None:
        """worker: its bit."""
        self.settle(request_id)
        positions = _positions(len(hashes))
        prediction = _Prediction(worker, tuple(hashes[i] for i in positions))
        self._of_request[request_id] = prediction
        for block_hash in prediction.hashes:
            counts = self._counts.setdefault(block_hash, {})
            counts[worker] = counts.get(worker, 0) + 1
            self._workers_of[block_hash] = self._workers_of.get(block_hash, 0) | worker
        while len(self._of_request) > self._limit:
            self.settle(next(iter(self._of_request)))

    def settle(self, request_id: str) -> None:
        """It has come true, or never will. Nothing to do when there is no such prediction."""
        prediction = self._of_request.pop(request_id, None)
        for block_hash in () if prediction is None else prediction.hashes:
            assert prediction is not None
            counts = self._counts[block_hash]
            counts[prediction.worker] -= 1
            if counts[prediction.worker]:
                continue
            del counts[prediction.worker]
            left = self._workers_of[block_hash] ^ prediction.worker
            if left:
                self._workers_of[block_hash] = left
            else:
                del self._workers_of[block_hash], self._counts[block_hash]

    def forget(self, worker: int) -> None:
        """All predictions of one worker: its bit will mean another."""
        for request_id in [r for r, prediction in self._of_request.items() if prediction.worker == worker]:
            self.settle(request_id)

    def runs(self, hashes: Sequence[bytes], workers: int) -> list[Run]:
        """Prefixes that `workers` are about to hold, in runs (hits.py)."""
        if not self._of_request:
            return []
        positions = _positions(len(hashes))
        picked = [hashes[i] for i in positions]
        return [
            (positions[n - 1] + 1, mask) for n, mask in leading_runs(self._workers_of, picked, workers, len(picked))
        ]

    @property
    def workers_of(self) -> Mapping[bytes, int]:
        """For checks."""
        return self._workers_of


def _positions(num_blocks: int) -> list[int]:
    """The first blocks, then every eighth, then the last: the same in two prompts as far as both go."""
    positions = [*range(min(_STRIDE, num_blocks)), *range(2 * _STRIDE - 1, num_blocks, _STRIDE)]
    if positions and positions[-1] != num_blocks - 1:
        positions.append(num_blocks - 1)
    return positions
