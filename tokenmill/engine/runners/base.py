"""The runner seam: turns a StepPlan into tokens. Owns token values and cache tensors; decides nothing."""

from __future__ import annotations

from typing import Protocol

from tokenmill.core.request import Request
from tokenmill.core.step import StepPlan, StepResult
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar


class Runner(Protocol):
    def add(self, request: Request, grammar: SequenceGrammar | None = None) -> None:
        """Learn the prompt and sampling parameters of a request that may appear in later plans.

        grammar  what every drawn token must keep to; read only, between `run` calls the scheduler moves it
        """
        ...

    def remove(self, request_id: str) -> None:
        """Forget a finished or aborted request; unknown ids are a bug."""
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens, draw where a sequence is sampling, keep the drawn tokens for later steps."""
        ...

    def memory_report(self) -> dict[str, int]:
        """Bytes held, by purpose ("weights", one entry per cache group)."""
        ...
