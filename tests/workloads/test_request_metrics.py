"""The report over requests, checked against figures worked out by hand."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.slo import SLO
from tokenmill.workloads.percentiles import percentile, spread
from tokenmill.workloads.report_cost import cost_report
from tokenmill.workloads.request_metrics import summarise, unloaded_slo
from tokenmill.workloads.request_record import RequestRecord

QUICK = RequestRecord(10.0, 11.0, (10.1, 10.3, 10.5), 100, 60, 3, "length")
SLOW = RequestRecord(10.5, 14.0, (12.5, 13.0, 14.0), 200, 0, 4, "stop")
FAILED = RequestRecord(10.0, 15.0, (10.1,), 0, 0, 0, None, error="503 worker_lost")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], level: float) -> None:
    assert percentile(values, level) == pytest.approx(float(np.percentile(values, level)), abs=1e-6)


def test_spread_of_nothing_is_none() -> None:
    assert spread("x_s", []) == {"x_s_mean": None, "x_s_p50": None, "x_s_p90": None, "x_s_p99": None}


def test_latencies_of_one_request() -> None:
    assert QUICK.ttft_s == pytest.approx(0.1)
    assert QUICK.tpot_s == pytest.approx(0.2)
    assert QUICK.e2e_s == pytest.approx(0.5)
    assert QUICK.itl_s == pytest.approx([0.2, 0.2])
    assert SLOW.tpot_s == pytest.approx(0.5)  # four tokens in three chunks: three gaps, not two


def test_request_without_output_has_no_latency() -> None:
    silent = RequestRecord(1.0, 2.0)
    assert (silent.ttft_s, silent.tpot_s, silent.e2e_s, silent.itl_s) == (None, None, None, [])


def test_failed_requests_are_counted_apart() -> None:
    report = summarise([QUICK, SLOW, FAILED], SLO(ttft_s=1.0, tpot_s=0.3))
    assert (report["num_requests"], report["num_ok"], report["num_failed"]) == (3, 2, 1)
    assert report["errors"] == {"503 worker_lost": 1}
    assert report["finish_reasons"] == {"length": 1, "stop": 1}
    assert report["ttft_s_mean"] == pytest.approx((0.1 + 2.0) / 2)
    assert report["duration_s"] == pytest.approx(5.0)
    assert report["num_output_tokens"] == 7
    assert report["output_tput_per_s"] == pytest.approx(7 / 5)
    assert report["input_tput_per_s"] == pytest.approx(300 / 5)
    assert report["uncached_input_tput_per_s"] == pytest.approx(240 / 5)
    assert report["total_tput_per_s"] == pytest.approx(307 / 5)
    assert report["num_in_flight_mean"] == pytest.approx((1.0 + 3.5 + 5.0) / 5)
    assert (report["num_good_requests"], report["num_good_tokens"]) == (1, 3)
    assert report["goodput_tokens_per_s"] == pytest.approx(3 / 5)
    assert report["slo"] == "ttft=1000ms,tpot=300ms"
    assert report["good_share"] == pytest.approx(1 / 3) and report["slo_met_p99"] is False
    assert summarise([QUICK, SLOW], SLO(ttft_s=2.1))["slo_met_p99"] is True


def test_a_failed_request_met_no_objective() -> None:
    slo = SLO(ttft_s=1.0)
    assert summarise([QUICK] * 99 + [FAILED], slo)["slo_met_p99"] is True
    report = summarise([QUICK] * 49 + [FAILED], slo)
    assert report["slo_met_p99"] is False and report["good_share"] == pytest.approx(0.98)
    report = summarise([FAILED], slo)
    assert report["slo_met_p99"] is False and report["good_share"] == 0
    assert summarise([], slo)["slo_met_p99"] is summarise([], slo)["good_share"] is None


def test_report_of_nothing_has_no_rates() -> None:
    report = summarise([], None)
    assert report["num_requests"] == 0 and report["output_tput_per_s"] is None and report["slo"] is None


def test_unloaded_slo_is_three_times_the_medians() -> None:
    slo = unloaded_slo([QUICK, QUICK, SLOW, FAILED])
    assert slo is not None
    assert slo.ttft_s == pytest.approx(0.3) and slo.tpot_s == pytest.approx(0.6)
    assert unloaded_slo([FAILED]) is None


def test_cost_from_time_and_price() -> None:
    report = cost_report(
        duration_s=36.0,
        num_input_tokens=3000,
        num_output_tokens=1000,
        num_good_tokens=500,
        usd_per_hour=0.5,
        watts=20.0,
        num_devices=2,
    )
    assert report["usd_total"] == pytest.approx(0.01)
    assert report["usd_per_mtok_total"] == pytest.approx(2.5)
    assert report["usd_per_mtok_output"] == pytest.approx(10.0)
    assert report["usd_per_mtok_good"] == pytest.approx(20.0)
    assert report["joules_per_token"] == pytest.approx(1.44)
    tokens_per_s, megawatts = 1000 / 36, 40e-6
    assert report["tok_s_per_mw"] == pytest.approx(tokens_per_s / megawatts)
    assert report["num_devices"] == 2


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0.01, 1e3), st.floats(0.01, 100))
def test_cost_agrees_with_the_throughput_formula(num_in: int, num_out: int, seconds: float, price: float) -> None:
    report = cost_report(
        duration_s=seconds,
        num_input_tokens=num_in,
        num_output_tokens=num_out,
        num_good_tokens=None,
        usd_per_hour=price,
        watts=None,
    )
    expected = price * 1e6 / (3600 * num_out / seconds)
    assert math.isclose(report["usd_per_mtok_output"] or 0, expected, rel_tol=1e-9)
    assert report["usd_per_mtok_good"] is None and report["joules_per_token"] is None


def test_unknown_price_gives_no_figure() -> None:
    report = cost_report(
        duration_s=1, num_input_tokens=1, num_output_tokens=1, num_good_tokens=1, usd_per_hour=None, watts=None
    )
    assert all(report[f"usd_per_mtok_{kind}"] is None for kind in ("total", "output", "good"))


def test_workloads_need_no_torch() -> None:
    names = ("arrivals", "percentiles", "prompts", "report_cost", "request_metrics")
    imports = "; ".join(f"import tokenmill.workloads.{name}" for name in names)
    code = f"import sys; sys.modules['torch'] = None; {imports}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
