"""Ctrl-C on the real command: what ran is reported, marked, and kept in files."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tokenmill.bench.generator import null_server

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("processes")]


def test_interrupted_command_reports_its_part(tmp_path) -> None:
    output = tmp_path / "r.json"
    with null_server(2.0) as url:
        command = [
            sys.executable,
            "-m",
            "tokenmill.cli.main",
            "bench",
            "serve",
            "--url",
            url,
            "--num-prompts",
            "100000",
        ]
        command += ["--concurrency", "4", "--osl", "8", "--isl", "16", "--output", str(output), "--json"]
        # A shell's background jobs ignore SIGINT, and so would all they start.
        heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heeding) as process:
            requests = tmp_path / "r.run" / "requests.jsonl"
            deadline = time.monotonic() + 40
            while not (requests.exists() and requests.stat().st_size > 5000):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    result = json.loads(out.strip().splitlines()[-1])
    assert not result["is_complete"] and result["num_ok"] > 5 and "interrupted" in result["problems"][0]
    assert json.loads(output.read_text()) == result
    assert len(requests.read_text().splitlines()) == result["num_requests"]
    assert len((tmp_path / "r.run" / "trace.jsonl").read_text().splitlines()) == result["num_sent"]
