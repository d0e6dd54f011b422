"""`tokenmill simulate`: the columns of a real benchmark, decisions that replay, and errors with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli.main import main

SMALL = ("simulate", "llama-3-8b", "--hardware", "h100_sxm", "--gpus", "2", "--num-prompts", "30", "--isl", "256")


def model_name() -> str:
    from tokenmill.models.priced import PRICED

    return next(name for name in PRICED if "8b" in name)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main([arg if arg != "llama-3-8b" else model_name() for arg in args])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_report_has_the_columns_of_bench_serve_and_a_balanced_bill(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--json")
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    columns = {
        "ttft_s_p50",
        "tpot_s_p99",
        "itl_s_p90",
        "output_tput_per_s",
        "usd_per_mtok_good",
        "steady",
        "cached_share",
    }
    assert columns <= set(result) and result["num_ok"] == 30 and result["is_valid"]
    assert result["ledger"]["is_balanced"] and result["fleet"]["num_workers"] == 2


def test_decisions_are_saved_and_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "decisions.tsv"
    faults = ("--faults", "random:3")
    assert run(capsys, *SMALL, *faults, "--save-decisions", str(file))[0] in (0, 1)
    code, out, _ = run(capsys, *SMALL, *faults, "--replay-decisions", str(file), "--json")
    assert json.loads(out.splitlines()[-1])["twin"]["differs"] is None
    code, _, err = run(capsys, *SMALL, *faults, "--seed", "5", "--replay-decisions", str(file))
    assert code == 1 and "decision 1 was" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--hardware", "h100sxm"), "did you mean 'h100_sxm'"),
        (("--workload", "chatt"), "did you mean 'chat'"),
        (("--set", "engine.max_num_seq=3"), "max_num_seq"),
        (("--set", "engine.quantization=int4"), "no model of quantization=int4"),
        (("--set", "engine.speculative_config.method=mtp"), "no model of drafts (speculative_config.method=mtp)"),
        (("--faults", "random:x"), "write random:5"),
        (("--layout", "tq8"), "layout 'tq8' is unknown"),
        (("--layout", "tp8"), "takes 8 devices per worker and 2 were given"),
    ],
)
def test_bad_input_is_told_in_one_line_with_code_2(
    capsys: pytest.CaptureFixture[str], changes: tuple[str, ...], message: str
) -> None:
    code, _, err = run(capsys, *SMALL, *changes)
    assert code == 2 and message in err, err


def test_its_results_are_points_of_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [str(tmp_path / f"{users}.json") for users in (1, 8)]
    for users, file in zip(("1", "8"), files, strict=True):
        assert run(capsys, *SMALL, "--concurrency", users, "--output", file)[0] == 0
    code, out, err = run(capsys, "bench", "pareto-page", *files, "--output", str(tmp_path / "page"))
    assert code == 0 and json.loads(out)["num_points"] == 2, err
    rows = (tmp_path / "page.csv").read_text().splitlines()[1:]
    assert all(row.startswith(f"{model_name()} on h100_sxm,simulated,") for row in rows)


def test_a_model_that_does_not_fit_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "simulate", "deepseek-v4-pro", "--hardware", "h100_sxm", "--layout", "tp4")
    assert code == 2 and "GB too much" in err and "16 or more devices" in err


def test_a_trace_with_broken_lines_names_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5}\n{"timestamp": 1}\nnot json\n')
    code, _, err = run(capsys, "simulate", "llama-3-8b", "--hardware", "h100_sxm", "--gpus", "1", "--trace", str(trace))
    assert code == 2 and "line 2" in err and "line 3" in err
