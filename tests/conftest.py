"""Shared fixtures. One thread per test process: two pytest workers share two cores.

Optional back-ends: a test marked `requires_x` is skipped with a reason where package x is missing. Where
TOKENMILL_NO_SKIP=1 (continuous integration installs every back-end) each such skip is a failure instead.
"""

import importlib.util
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--goldens", metavar="DIR", help="run the golden tests on the checkpoints in the folders below DIR"
    )


def missing_backends(item: pytest.Item) -> list[str]:
    """Packages that the test's `requires_x` marks name and that are not installed."""
    wanted = [mark.name.removeprefix("requires_") for mark in item.iter_markers() if mark.name.startswith("requires_")]
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if missing := missing_backends(item):
        pytest.skip(f"not installed: {', '.join(missing)}")


def _refuses_skips() -> bool:
    return os.environ.get("TOKENMILL_NO_SKIP") == "1"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = (yield).get_result()
    marks = [mark.name for mark in item.iter_markers() if mark.name.startswith("requires_")]
    if report.skipped and not hasattr(report, "wasxfail") and marks and _refuses_skips():
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipped although {', '.join(marks)} must run here: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = (yield).get_result()
    if report.skipped and "could not import" in str(report.longrepr) and _refuses_skips():
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: skipped although its package must be here: {report.longrepr}"
