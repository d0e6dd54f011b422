"""Placing a model: what a calibration file in the place of a key says of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.cost.steptime.calibration import Calibration, SoftwareCalibration, write_calibration
from tokenmill.cost.steptime.measured import MeasuredStepTime
from tokenmill.cost.steptime.shape import StepShape
from tokenmill.engine.config import EngineConfig
from tokenmill.sim.hardware import place_model

MODEL = "deepseek-v4-flash"


def test_a_calibration_of_points_stands_for_its_device(tmp_path: Path) -> None:
    path = tmp_path / "points.toml"
    write_calibration(SoftwareCalibration(MODEL, "h200_sxm", "fp8", 1.25, 1.1, {}), path)
    told = place_model(MODEL, str(path), 16, EngineConfig(), layout="dep8")
    same = place_model(MODEL, "h200_sxm", 16, EngineConfig(), layout="dep8", precision="fp8", slowdown=1.25)
    shape = StepShape.decode(16, 16 * 1000)
    assert told.kind.num_workers == same.kind.num_workers == 2
    assert told.rate == same.rate
    assert told.kind.step_time.step_s(shape) == pytest.approx(same.kind.step_time.step_s(shape))


def test_measured_times_alone_place_nothing(tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    write_calibration(
        Calibration(MODEL, MeasuredStepTime((1.0, 8.0), (1e-3, 2e-3), 0.0, 0.0, 0.0, 0.0, 0.0, ()), {}), path
    )
    with pytest.raises(ConfigError, match="neither memory nor price"):
        place_model(MODEL, str(path), 16, EngineConfig())
