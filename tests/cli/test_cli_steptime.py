"""catalogue, calibrate and bench predict as commands: tables, JSON on the last line, exit code 2 for what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.cost.steptime.load import step_time_for
from tokenmill.cost.steptime.shape import StepShape

TINY = Path(__file__).parent.parent / "data" / "goldens" / "tiny-flash"


def test_catalogue(run: Callable) -> None:
    listed = run("catalogue", "list", "--json")
    assert listed.code == 0 and {"gb300_nvl72", "cpu_server", "this_machine"} <= set(listed.json["devices"])
    assert "gb300_nvl72" in run("catalogue", "list").out
    shown = run("catalogue", "show", "GB300-NVL72")
    assert shown.code == 0 and "NVLink-C2C" in shown.out and "2026-07" in shown.out
    assert run("catalogue", "show", "mi355x", "--json").json["prices"][0]["usd_per_hour"] == 1.48


def test_catalogue_refuses_unknown_devices_with_the_nearest(run: Callable) -> None:
    found = run("catalogue", "show", "gb300")
    assert found.code == 2 and "did you mean 'gb300_nvl72'" in found.err


def test_catalogue_takes_devices_of_a_user(run: Callable, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[devices.mine]\nname = "Mine"\nkind = "gpu"\ndomain_size = 2\nmemory_gb = 24\n'
        'source = "the box"\nas_of = "2026-01"\n'
    )
    assert run("catalogue", "show", "mine", "--file", str(path)).code == 0
    path.write_text("[devices.mine]\nmemory_gb = -1\n")
    bad = run("catalogue", "list", "--file", str(path))
    assert bad.code == 2 and "not a positive number" in bad.err


def test_this_machine_measured(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The written entry is read back, has bandwidth and products, and can be predicted with."""
    path = tmp_path / "catalogue.toml"
    monkeypatch.setattr("tokenmill.bench.machine_peaks._BUFFER_BYTES", 2**24)
    monkeypatch.setattr("tokenmill.bench.machine_peaks._MATRIX", 256)
    assert run("catalogue", "measure", "-o", str(path)).code == 0
    monkeypatch.setenv("TOKENMILL_CATALOGUE", str(path))
    spec = run("catalogue", "show", "this_machine", "--json").json
    assert spec["memory_bytes_per_s"]["value"] > 1e8 and "measured" in spec["flops_per_s"]["bf16"]["source"]
    assert step_time_for("smollm2", "this_machine").step_s(StepShape.decode(1, 10)) > 0


def test_calibrate_measures_the_real_engine(run: Callable, tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    found = run("calibrate", str(TINY), "-o", str(path), "--repeats", "1", "--num-steps", "3", "--set", "num_threads=1")
    assert found.code == 0, found.err
    report = found.json
    assert report["num_steps"] > 60 and len(report["checks"]) == 3 and "load average" in found.out
    step_time = step_time_for("", str(path))
    one, many = step_time.step_s(StepShape.decode(1, 64)), step_time.step_s(StepShape.prefill(512))
    assert 0 < one < many < 10


def test_calibrate_from_published_points(run: Callable, tmp_path: Path) -> None:
    path = tmp_path / "c03.toml"
    found = run("calibrate", "--curve", "c03", "-o", str(path))
    assert found.code == 0 and found.json["hardware"] == "gb200_nvl72"
    assert step_time_for("deepseek-v4-pro", str(path), "dep8").step_s(StepShape.decode(8, 800)) > 0
    unknown = run("calibrate", "--curve", "c98", "-o", str(path))
    assert unknown.code == 2 and "possible: c01" in unknown.err


def test_claims(run: Callable) -> None:
    found = run("bench", "predict", "--claims")
    assert found.code == 0
    claims = {claim["claim"].split(" (")[0]: claim for claim in found.json["claims"]}
    assert len(claims) == 11 and all(claim["assumptions"] and claim["verdict"] for claim in claims.values())
    values = {name: claim["values"].get("computed") for name, claim in claims.items()}
    assert values["5x lower cost per token in a month"] == pytest.approx(5.09, abs=0.01)
    assert values["27 % of V3.2's FLOPs per token at 1M tokens"] == pytest.approx(0.262, abs=0.001)
    assert values["10 % of V3.2's KV cache at 1M tokens"] == pytest.approx(0.105, abs=0.001)
    assert values["690 -> 415 GB with NVFP4"] == pytest.approx(415, rel=0.01)


def test_predict_refuses_a_file_that_is_not_one(run: Callable, tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("a,b\n1,2\n")
    found = run("bench", "predict", "--points", str(path))
    assert found.code == 2 and "lack the columns" in found.err
