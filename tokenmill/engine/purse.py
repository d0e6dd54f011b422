"""Who pays for steps that nobody looked at one by one: the seconds of coasting decodes, charged when they are told.

A step's seconds are split by row weight (cost/shares): 1 + w (c + 1) for a decode behind c tokens. All coasting decodes
gain one token per step, so two running sums give each one's share of any number of steps. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    """base: tokens before its next row, less the step number; the sums as they were when it was last paid."""

    base: int
    per_row: float
    per_step: float


class Purse:
    """
    context_weight  as in cost/shares
    held_s          of the steps so far, what is not yet in anybody's bill
    """

    def __init__(self, context_weight: float) -> None:
        self._weight = context_weight
        self._step = 0
        self._per_row = 0.0  # sum over steps of seconds / total weight
        self._per_step = 0.0  # the same, each times its step number
        self._accounts: dict[str, _Account] = {}
        self._owed: dict[str, float] = {}
        self.held_s = 0.0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._accounts

    def open(self, request_id: str, num_computed_tokens: int) -> None:
        """A sequence coasts from the next step on."""
        self._accounts[request_id] = _Account(num_computed_tokens - self._step, self._per_row, self._per_step)

    def spend(
        self, seconds: float, num_steps: int, weights: Sequence[float], num_coasting: int, coasting_context: int
    ) -> list[float]:
        """`num_steps` steps were run; shares of those with `weights`, the coasting ones' part is held.

        num_coasting, coasting_context  their number and computed tokens before the first of the steps
        """
        middle = (num_steps - 1) / 2
        coasting = num_coasting + self._weight * (coasting_context + num_coasting * (1 + middle))
        total = coasting + sum(weights)
        self._step += num_steps
        if total <= 0:
            return [0.0] * len(weights)
        rate = seconds / total
        self._per_row += rate
        self._per_step += rate * (self._step - 1 - middle)
        self.held_s += rate * coasting
        return [rate * weight for weight in weights]

    def pay(self, request_id: str) -> float:
        """What a coasting sequence owes since it was last asked."""
        account = self._accounts[request_id]
        seconds = self._take(account) + self._owed.pop(request_id, 0.0)
        self.held_s = max(0.0, self.held_s - seconds)
        return seconds

    def close(self, request_id: str) -> float:
        """Forget a sequence; what it still owed."""
        if request_id in self._accounts:
            seconds = self.pay(request_id)
            del self._accounts[request_id]
            return seconds
        seconds = self._owed.pop(request_id, 0.0)
        self.held_s = max(0.0, self.held_s - seconds)
        return seconds

    def end_all(self) -> None:
        """Nobody coasts any more; what they owe is kept until they are asked."""
        for request_id, account in self._accounts.items():
            self._owed[request_id] = self._owed.get(request_id, 0.0) + self._take(account)
        self._accounts.clear()

    def _take(self, account: _Account) -> float:
        rows, steps = self._per_row - account.per_row, self._per_step - account.per_step
        account.per_row, account.per_step = self._per_row, self._per_step
        return max(0.0, rows * (1 + self._weight * (account.base + 1)) + self._weight * steps)
