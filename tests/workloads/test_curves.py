"""Points, frontiers, published rows, ratios: pure arithmetic of sweeps and comparisons."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError
from tokenmill.workloads.comparison import compare
from tokenmill.workloads.curve_page import curve_page
from tokenmill.workloads.curves import CurvePoint, frontier, published_points, read_points, to_csv, usd_per_mtok

points = st.lists(
    st.builds(
        CurvePoint,
        curve=st.just("c"),
        kind=st.just("measured"),
        concurrency=st.integers(1, 64),
        tput_per_gpu=st.floats(1, 1e5),
        interactivity=st.floats(1, 500),
        ttft_s_p50=st.none() | st.floats(0, 5),
        is_valid=st.booleans(),
    ),
    max_size=20,
)


@given(points, st.none() | st.floats(0.1, 4))
def test_frontier_is_what_nothing_beats(given: list[CurvePoint], bound_s: float | None) -> None:
    best = frontier(given, bound_s)
    allowed = [p for p in given if p.is_valid and (bound_s is None or (p.ttft_s_p50 or 0) <= bound_s)]
    assert all(point in allowed for point in best)
    for point in allowed:
        beaten = any(
            other.interactivity >= point.interactivity
            and other.tput_per_gpu >= point.tput_per_gpu
            and (other.interactivity, other.tput_per_gpu) != (point.interactivity, point.tput_per_gpu)
            for other in allowed
        )
        same = any((p.interactivity, p.tput_per_gpu) == (point.interactivity, point.tput_per_gpu) for p in best)
        assert same != beaten
    speeds = [point.interactivity for point in best]
    assert speeds == sorted(speeds) and [p.tput_per_gpu for p in best] == sorted(p.tput_per_gpu for p in best)[::-1]


def test_published_rows_recompute_their_own_dollars() -> None:
    """GB300 at 2,200 tok/s and 2.652 $/h is 0.335 $/M."""
    rows = published_points("all")
    assert len(rows) > 40 and all(row.kind == "published" and row.source for row in rows)
    assert usd_per_mtok(2.652, 2200) == pytest.approx(0.335, abs=1e-3)
    assert {row.scenario for row in rows} == {"fixed", "agentic"}
    assert published_points("gb300") != rows
    with pytest.raises(ConfigError, match=r"no published point matches 'tpu': possible: all, .*DeepSeek-V4-Pro"):
        published_points("tpu")


def test_csv_holds_every_field() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(published_points("V4-Flash")))))
    assert rows[0]["curve"].startswith("DeepSeek-V4-Flash") and float(rows[0]["tput_per_gpu"]) > 0


def test_page_keeps_what_it_is_told_out_of_its_scripts() -> None:
    text = curve_page([], title="<b>", about={"x": "</script><script>alert(1)</script>"}, ttft_bound_s=None)
    assert "alert(1)</script>" not in text and "<title>&lt;b&gt;</title>" in text
    assert "%%" not in text.split("uPlot")[0]


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that slows down between rounds slows both systems."""
    rounds = [
        {"a": {"tpot_s_p50": slow * 1.0, "ttft_s_p50": None}, "b": {"tpot_s_p50": slow * 1.5, "ttft_s_p50": 1.0}}
        for slow in (1.0, 4.0, 2.0)
    ]
    told = compare(rounds, "a")
    assert told["tpot_s_p50"]["ratio"]["b"] == {"median": 1.5, "low": 1.5, "high": 1.5, "num_rounds": 3}
    assert told["tpot_s_p50"]["median"] == {"a": 2.0, "b": 3.0}
    assert "ttft_s_p50" not in told  # the base has none


RUN = {
    "settings": {"models": ["m"], "url": "http://h:1", "concurrency": 4},
    "environment": {"when": "2026-11-30T22:00:00"},
    "steady": None, "num_devices": 2, "device_hour_usd": 3.6, "watts_per_device": None, "joules_per_token": None,
    "total_tput_per_s": 200.0, "output_tput_per_s": 50.0, "interactivity_p50": 20.0, "ttft_s_p50": 0.1,
    "ttft_s_p99": 0.2, "isl_mean": 30, "osl_mean": 10, "cacheable_share": 0.0, "is_valid": True,
}  # fmt: skip


def test_a_single_run_is_a_point(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(RUN))
    (point,) = read_points(file)
    assert (point.curve, point.kind, point.source) == ("m at http://h:1", "measured", "2026-11-30")
    assert (point.tput_per_gpu, point.concurrency, point.usd_per_mtok_total) == (100.0, 4, pytest.approx(10.0))
    file.write_text(json.dumps(RUN | {"environment": {"device": "h100_sxm", "is_simulated": True}}))
    assert [(p.curve, p.kind) for p in read_points(file)] == [("m on h100_sxm", "simulated")]
    file.write_text(json.dumps(RUN | {"total_tput_per_s": None}))
    assert read_points(file) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"points": 3}',
        '{"points": [{"x": 1}]}',
        '{"settings": []}',
        '{"settings": {"models": []}, "environment": 3}',
    ],
)
def test_files_without_points_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json.*holds no points"):
        read_points(file)
