"""The suite's own rule: a back-end that is missing is skipped for a user and is a failure in continuous integration."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = """
import pytest

@pytest.mark.requires_no_such_package
def test_needs_backend():
    raise AssertionError("must not run without its package")

@pytest.mark.requires_json
def test_has_backend():
    pass

@pytest.mark.xfail(strict=True)
@pytest.mark.requires_json
def test_expected_failure():
    raise AssertionError("expected")
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    requires_no_such_package\n    requires_json\n")
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    return tmp_path


def _run(folder: Path, no_skip: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TOKENMILL_NO_SKIP": no_skip}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder)]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=50)


def test_missing_backend_is_skipped_for_a_user(sample: Path) -> None:
    result = _run(sample, "0")
    assert result.returncode == 0, result.stdout
    assert "1 passed, 1 skipped, 1 xfailed" in result.stdout


def test_missing_backend_fails_in_ci(sample: Path) -> None:
    result = _run(sample, "1")
    assert "1 passed, 1 xfailed, 1 error" in result.stdout
    assert "skipped although requires_no_such_package must run here" in result.stdout


def test_module_that_cannot_import_fails_in_ci(sample: Path) -> None:
    (sample / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    result = _run(sample, "1")
    assert result.returncode != 0
    assert "skipped although its package must be here" in result.stdout
