"""Prompt tokens that each worker was given and has still to compute, without those it holds already. Pure.

Not responsible for: the load admission counts (in_flight.py), which does not know of hits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Prompt:
    worker_id: str
    num_left: int


class Backlog:
    """A request is in it from its placement to its first token (or its end)."""

    def __init__(self) -> None:
        self._prompts: dict[str, _Prompt] = {}
        self._tokens: dict[str, int] = {}

    def tokens(self, worker_id: str) -> int:
        return self._tokens.get(worker_id, 0)

    def add(self, request_id: str, worker_id: str, num_tokens: int) -> None:
        self.remove(request_id)
        self._prompts[request_id] = _Prompt(worker_id, num_tokens)
        self._tokens[worker_id] = self._tokens.get(worker_id, 0) + num_tokens

    def compute(self, request_id: str, num_tokens: int) -> None:
        """So many of its prompt tokens are done; what was counted wrongly comes right at its first token."""
        prompt = self._prompts.get(request_id)
        if prompt is not None and prompt.num_left:
            num_done = min(num_tokens, prompt.num_left)
            prompt.num_left -= num_done
            self._tokens[prompt.worker_id] -= num_done

    def remove(self, request_id: str) -> None:
        """Its first token is out, or its worker has it no longer."""
        prompt = self._prompts.pop(request_id, None)
        if prompt is None:
            return
        left = self._tokens.get(prompt.worker_id, 0) - prompt.num_left
        if left:
            self._tokens[prompt.worker_id] = left
        else:
            self._tokens.pop(prompt.worker_id, None)

    def check_integrity(self) -> None:
        sums: dict[str, int] = {}
        for prompt in self._prompts.values():
            sums[prompt.worker_id] = sums.get(prompt.worker_id, 0) + prompt.num_left
        assert {w: n for w, n in sums.items() if n} == {w: n for w, n in self._tokens.items() if n}, self._tokens
