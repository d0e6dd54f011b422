"""Fitted step times: known costs come back from noisy steps, files keep them, bad files are refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import KeyRead
from tokenmill.cost.steptime.calibration import (
    Calibration,
    SoftwareCalibration,
    read_calibration,
    to_toml,
    write_calibration,
)
from tokenmill.cost.steptime.fit import MeasuredStep, fit_measured, fit_served
from tokenmill.cost.steptime.load import step_time_for
from tokenmill.cost.steptime.measured import MeasuredStepTime
from tokenmill.cost.steptime.roofline import RooflineStepTime
from tokenmill.cost.steptime.shape import StepShape
from tokenmill.models.priced import describe_model

KEYS = (KeyRead(70000.0, 1.0), KeyRead(9000.0, 1.0, 4.0, 64.0, prefill_flops_per_key=5000.0))
TRUE = MeasuredStepTime(
    rows=(1.0, 8.0, 64.0, 512.0),
    rows_s=(0.016, 0.017, 0.075, 0.58),
    decode_seq_s=4e-4,
    chunk_s=1.3e-3,
    sampled_s=5e-5,
    decode_flop_s=4e-11,
    prefill_flop_s=1.3e-11,
    keys=KEYS,
)


def steps(noise: float, interrupted: float = 0.0) -> list[MeasuredStep]:
    """Decodes, chunks, and both in one step; some steps are interrupted and take three times as long."""
    rng = random.Random(5)
    shapes = [StepShape.decode(b, b * c) for b in (1, 2, 4, 8, 16, 32, 64) for c in (32, 300, 900)] * 3
    shapes += [
        StepShape.prefill(n, c, is_last=last) for n in (8, 40, 128, 500) for c in (0, 512) for last in (True, False)
    ]
    shapes += [StepShape(n, 1, n * n / 2, b, b * 200, 0, b) for n in (30, 200, 448) for b in (2, 16, 48)]
    found = []
    for shape in shapes * 2:
        factor = rng.lognormvariate(0, noise) * (3.0 if rng.random() < interrupted else 1.0)
        found.append(MeasuredStep(shape, TRUE.step_s(shape) * factor))
    return found


@pytest.mark.parametrize(("noise", "interrupted"), [(0.0, 0.0), (0.03, 0.0), (0.03, 0.1)])
def test_known_costs_come_back(noise: float, interrupted: float) -> None:
    made = fit_measured(steps(noise, interrupted), KEYS)
    for shape in (
        *(StepShape.decode(b, b * c) for b in (1, 3, 12, 24, 50) for c in (64, 700)),
        *(StepShape.prefill(n, 100) for n in (20, 100, 300)),
        StepShape(100, 1, 5050, 20, 4000, 0, 21),
    ):
        assert made.step_s(shape) == pytest.approx(TRUE.step_s(shape), rel=0.08)
    assert min(made.decode_seq_s, made.chunk_s, made.sampled_s, made.decode_flop_s, made.prefill_flop_s) >= 0
    assert list(made.rows_s) == sorted(made.rows_s)


def test_the_range_is_that_of_the_residuals() -> None:
    quiet, noisy = (fit_measured(steps(noise), KEYS).range_factor for noise in (0.01, 0.2))
    assert 1.0 < quiet < 1.06 and 1.15 < noisy < 1.6


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 steps of 1 sizes cannot be fitted"):
        fit_measured(steps(0)[:3], KEYS)
    with pytest.raises(ConfigError, match="of 1 sizes"):
        fit_measured([MeasuredStep(StepShape.decode(4, 40), 0.1)] * 50, KEYS)


def test_tables_go_on_beyond_their_ends() -> None:
    assert TRUE.step_s(StepShape.prefill(1024)) > TRUE.step_s(StepShape.prefill(512)) * 1.9
    assert TRUE.step_s(StepShape()) == 0.0


def test_parts_sum() -> None:
    served = TRUE.served(1.2, 3e-3)
    shape = StepShape(100, 2, 9000, 20, 4000, 5, 21)
    for made in (TRUE, served):
        prediction = made.seconds(shape)
        assert sum(prediction.parts.values()) == pytest.approx(made.step_s(shape))
        assert prediction.low < prediction.seconds < prediction.high
    assert served.step_s(shape) == pytest.approx(1.2 * TRUE.step_s(shape) + 3e-3)


def test_a_span_is_its_steps() -> None:
    single = sum(TRUE.step_s(StepShape.decode(9, 9 * (100 + i))) for i in range(300))
    assert TRUE.decode_seconds(9, 900, 300) == pytest.approx(single, rel=0.01)


def test_what_a_server_adds_is_fitted() -> None:
    alone = [0.02, 0.03, 0.06]
    assert fit_served(alone, [1.1 * s + 4e-3 for s in alone]) == pytest.approx((1.1, 4e-3), rel=0.02)
    assert fit_served(alone, [0.9 * s for s in alone]) == (1.0, 0.0)  # a server makes nothing quicker


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    made = Calibration("smollm2", TRUE.served(1.1, 1e-3), {"cpu": 'a "quoted" \\ name', "when": "today"})
    write_calibration(made, path)
    assert read_calibration(path) == made
    assert step_time_for("anything", str(path)) == made.step_time


def test_published_software_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c03.toml"
    made = SoftwareCalibration("deepseek-v4-pro", "gb200_nvl72", "fp4", 1.2, 1.25, {"curve": "c03"})
    write_calibration(made, path)
    assert read_calibration(path) == made
    step_time = step_time_for("deepseek-v4-pro", str(path), "dep8")
    assert isinstance(step_time, RooflineStepTime)
    plain = step_time_for("deepseek-v4-pro", "gb200_nvl72", "dep8")
    shape = StepShape.decode(64, 64 * 8192)
    assert step_time.step_s(shape) == pytest.approx(1.2 * plain.step_s(shape))
    prediction = step_time.seconds(shape)
    assert prediction.high / prediction.seconds == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version = 1", "version = 9"), "version 9 is not 1"),
        (("chunk_s = 0.0013", ""), "'chunk_s' is missing"),
        (("chunk_s = 0.0013", "chunk_s = -1"), "chunk_s=-1.0 is not possible"),
        (("rows = [1, 8,", "rows = [8, 1,"), "rows ascending"),
        (("[costs]", "[costs"), "cannot be read"),
        (("tokens_per_key = 4", "tokens_for_key = 4"), "tokens_for_key"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path, text = tmp_path / "bad.toml", to_toml(Calibration("smollm2", TRUE, {}))
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    with pytest.raises(ConfigError, match=message):
        read_calibration(path)
    with pytest.raises(ConfigError, match="tokenmill calibrate"):
        read_calibration(tmp_path / "nowhere.toml")


def test_keys_bend_the_curve_where_the_model_does() -> None:
    """DeepSeek V4's window and selection: the second thousand tokens cost less than the first."""
    keys = describe_model("deepseek-v4-flash", "bf16").keys
    made = MeasuredStepTime((1.0, 2.0), (0.0, 0.0), 0, 0, 0, 1e-12, 1e-12, keys)
    first, second, third = (made.step_s(StepShape.decode(1, c)) for c in (1000, 2000, 3000))
    assert first > second - first > 0 and third > second
