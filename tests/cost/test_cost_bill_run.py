"""A real deployment's ledger against the kernel's record of its processes, with a killed worker and a killed frontend.

By hand, with its figures:  python -m tests.cost.bill_run --seconds 60
"""

from __future__ import annotations

import pytest

from tests.cost.bill_run import run


def check(result: dict, tolerance: float) -> None:
    print(result)
    assert result["num_lives"] == 3, "two workers, one of them twice"
    assert result["num_ok"] > 0 and result["num_failed"] > 0
    assert result["relative_error"] < tolerance
    assert result["unexplained_seconds"] < 1e-3 * result["process_seconds"]
    assert result["usd_by_line"]["lost"] > 0 and result["usd_by_line"]["decode"] > 0


@pytest.mark.ci
@pytest.mark.xdist_group("processes")
@pytest.mark.timeout(180)
def test_twelve_seconds_of_a_counting_deployment() -> None:
    check(run(12, ["counting", "--set", "models.0.worker=simulated"]), 0.003)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [60, 600])
def test_the_bill_of_a_model_is_process_seconds_times_price(seconds: int) -> None:
    check(run(seconds, ["smollm2"]), 0.001)
