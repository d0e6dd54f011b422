"""Plans count their tokens, work adds up, files of ours live under one root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.core.paths import cache_folder
from tokenmill.core.step import SequencePlan, StepPlan
from tokenmill.core.work import Work


def test_step_plan_counts_tokens() -> None:
    plan = StepPlan(1, tuple(SequencePlan(str(n), 0, n, True, {}) for n in (1, 7, 512)))
    assert plan.num_tokens == 520
    assert StepPlan(2, ()).num_tokens == 0


def test_work_adds_and_scales() -> None:
    one = Work(flops=1.0, weight_bytes=2.0, cache_bytes=3.0)
    assert one + one == one.scaled(2)
    assert one + Work() == one


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    assert cache_folder("models") == tmp_path / "models"
    monkeypatch.delenv("TOKENMILL_CACHE")
    assert cache_folder("models").parts[-3:] == (".cache", "tokenmill", "models")
