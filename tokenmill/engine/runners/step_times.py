"""The simplest step-time model: a fixed part and so much per row and per token of context. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.cost.steptime.shape import Prediction, StepShape, StepTime


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """
    fixed_s        a step costs at least this
    per_token_s    each row
    per_context_s  each cached token that a decode reads, and each pair of tokens in a prompt chunk
    per_prefill_token_s  each row of a prompt chunk on top
    """

    fixed_s: float = 2e-3
    per_token_s: float = 5e-5
    per_context_s: float = 0.0
    per_prefill_token_s: float = 0.0

    def step_s(self, shape: StepShape) -> float:
        return (
            self.fixed_s
            + self.per_token_s * shape.num_tokens
            + self.per_prefill_token_s * shape.num_prefill_tokens
            + self.per_context_s * (shape.decode_context_sum + shape.prefill_context_sum)
        )

    def seconds(self, shape: StepShape) -> Prediction:
        seconds = self.step_s(shape)
        return Prediction(seconds, seconds, seconds)

    def decode_seconds(self, batch: int, context_sum: float, num_steps: int = 1, num_draft_tokens: int = 0) -> float:
        first_s = self.step_s(StepShape.decode(batch, context_sum, num_draft_tokens))
        growth = self.per_context_s * batch * num_steps * (num_steps - 1) / 2
        return num_steps * first_s + growth


@dataclass(slots=True)
class ScaledStepTime:
    """Another model's times, times a factor that may change: a stand-in that runs faster, a node that got slow."""

    model: StepTime
    factor: float = 1.0

    def step_s(self, shape: StepShape) -> float:
        return self.model.step_s(shape) * self.factor

    def seconds(self, shape: StepShape) -> Prediction:
        told = self.model.seconds(shape)
        return Prediction(told.seconds * self.factor, told.low * self.factor, told.high * self.factor, told.parts)

    def decode_seconds(self, batch: int, context_sum: float, num_steps: int = 1, num_draft_tokens: int = 0) -> float:
        return self.model.decode_seconds(batch, context_sum, num_steps, num_draft_tokens) * self.factor
