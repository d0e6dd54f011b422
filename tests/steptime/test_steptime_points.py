"""Published points: what the model says of them, how it is judged, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenmill.bench.predict import run_predict_bench
from tokenmill.bench.predict_report import cells, summary, to_markdown
from tokenmill.core.errors import ConfigError
from tokenmill.cost.steptime.anchor import calibrate_curve, rank_correlation, solve_slowdown
from tokenmill.cost.steptime.points import read_points
from tokenmill.cost.steptime.row_model import row_models
from tokenmill.infra.catalogue import load_catalogue

CATALOGUE = load_catalogue(environ={})


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run_predict_bench()


def test_rows_of_a_curve_are_predicted_from_one_of_them(result: dict[str, Any]) -> None:
    assert len(result["anchored"]) >= 25
    assert result["median_error_anchored"] < 0.15
    assert result["median_error_any_anchor"] < 0.15
    assert result["share_in_range_anchored"] >= 0.8


def test_a_device_that_nothing_was_fitted_to_is_predicted(result: dict[str, Any]) -> None:
    left_out = result["device_left_out"]
    assert (left_out["known"], left_out["left_out"], len(left_out["rows"])) == ("c03", "c04", 5)
    assert left_out["largest_error"] < 0.30
    assert left_out["share_in_range"] >= 0.8


def test_rows_of_a_date_are_ranked(result: dict[str, Any]) -> None:
    """Every date with five rows or more; no row is predicted from itself."""
    dated = result["rank_correlation_by_date"]
    assert {date.split(" ")[0] for date in dated} == {"2026", "2026-05-21", "2026-05-22", "2026-08"}
    assert sum(of["num_rows"] for of in dated.values()) == 40
    assert all(of["rank_correlation"] >= 0.9 - 1e-9 for of in dated.values())


def test_every_row_is_predicted_or_says_why_not(result: dict[str, Any]) -> None:
    told = {row["id"] for row in result["anchored"] + result["blind"]} | set(result["not_predicted"])
    assert told == {point.id for point in read_points()}
    assert all(result["not_predicted"].values())


def test_ranges_without_the_curve_hold_four_of_five(result: dict[str, Any]) -> None:
    assert result["share_in_range_blind"] >= 0.8


def test_the_report_names_every_row(result: dict[str, Any]) -> None:
    claim = {"claim": "c", "published": "1", "computed": "2", "verdict": "no", "assumptions": "a"}
    text = to_markdown(result, {"claims": [claim]})
    for point in read_points():
        assert point.id in text
    assert len(cells(result["blind"][0])) == 9 and any("c03 -> c04" in line for line in summary(result))


def test_a_slowdown_divides_throughput_and_shifts_frontiers() -> None:
    rows = {row.point.id: row for row in row_models(read_points(), CATALOGUE)}
    loop, read = rows["p005"], rows["p018"]
    assert loop.tput(2.0) == pytest.approx((loop.tput(1.0) or 0) / 2)
    shifted, fast = read.tput(1.5), read.frontier.at_interactivity(18 * 1.5)
    assert fast is not None and shifted == pytest.approx(fast.steady.tput_per_device / 1.5)
    for row in (loop, read):
        assert row.tput(solve_slowdown(row)) == pytest.approx(row.point.tput_per_gpu, rel=0.02)


def test_a_curve_can_be_calibrated() -> None:
    made = calibrate_curve(read_points(), "c03", CATALOGUE)
    assert (made.model, made.hardware, made.precision) == ("deepseek-v4-pro", "gb200_nvl72", "fp4")
    assert 0.8 < made.slowdown < 1.5 and made.origin["date"] == "2026-05-22"
    with pytest.raises(ConfigError, match="no row of curve 'c99' can be predicted: possible: c01, c03"):
        calibrate_curve(read_points(), "c99", CATALOGUE)


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2, 3], [5, 5, 6, 7]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,curve\n1,c", "lack the columns model, hardware, precision, tok_s_gpu_total, date"),
        (
            "id,curve,model,hardware,precision,tok_s_gpu_total,date\np,c,m,h,fp4,many,2026\n",
            "line 2: tok_s_gpu_total='many'",
        ),
        ("id,curve,model,hardware,precision,tok_s_gpu_total,date\np,c,m,h,fp4,-3,2026\n", "not a positive number"),
    ],
)
def test_bad_files_of_points(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_points(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_points(tmp_path / "nowhere.csv")


def test_files_without_a_predictable_row_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("id,curve,model,hardware,precision,tok_s_gpu_total,date\np,c,gpt-9,h100,fp4,3,2026\n")
    with pytest.raises(ConfigError, match="hold no row that can be predicted"):
        run_predict_bench(path)
