"""Equal workers of the twin: one card for all of them, and an engine for each life. Not responsible for: sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenmill.core.clock import Clock, ManualClock
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.simulated import skipping_engine
from tokenmill.engine.skipping_engine import SkippingEngine
from tokenmill.sim.twin import WorkerKind


def worker_kind(
    engine: EngineConfig,
    step_time: StepTime,
    num_workers: int,
    *,
    load_s: float = 1.0,
    is_quiet: bool = False,
    **size: Any,
) -> WorkerKind:
    """size: name, vocab_size, max_model_len, groups, budget_bytes of engine/simulated.skipping_engine."""
    clock = ManualClock()
    card = skipping_engine(engine, clock=clock, pace=clock.advance, step_time=step_time, **size).card

    def make(clock: Clock, pace: Callable[[float], None], step_time: StepTime) -> SkippingEngine:
        return skipping_engine(
            engine, clock=clock, pace=pace, step_time=step_time, card=card, is_quiet=is_quiet, **size
        )

    return WorkerKind(card, num_workers, make, step_time, load_s)
