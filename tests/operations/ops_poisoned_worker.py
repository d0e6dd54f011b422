"""A worker whose engine fails on any prompt of 13 tokens. A script, for process tests."""

from __future__ import annotations

import sys

from tokenmill.core.step import StepPlan, StepResult
from tokenmill.engine.runners.modelled import ModelledRunner
from tokenmill.operations.worker.main import main

run_well = ModelledRunner.run


def run(self: ModelledRunner, plan: StepPlan) -> StepResult:
    if any(planned.num_scheduled_tokens == 13 for planned in plan.sequences):
        raise RuntimeError("thirteen")
    return run_well(self, plan)


if __name__ == "__main__":
    ModelledRunner.run = run  # type: ignore[method-assign]
    sys.exit(main())
