"""Child processes of the supervisor: signals, orphans, failed starts."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

import pytest

from tokenmill.core.errors import CheckpointError, SetupError
from tokenmill.operations.child import (
    ParentWatch,
    SignalLifeline,
    read_setup_error,
    remove_run_dir,
    report_setup_error,
)


@pytest.fixture
def lifeline():
    """Installed, and the signals given back afterwards."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    lifeline = SignalLifeline(ParentWatch(None))
    lifeline.install()
    yield lifeline
    signal.set_wakeup_fd(-1)
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


def test_one_signal_drains_two_stop(lifeline: SignalLifeline) -> None:
    assert not lifeline.wants_drain() and not lifeline.wants_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert lifeline.wants_drain() and not lifeline.wants_stop()
    assert select.select([lifeline.wake_fd], [], [], 5)[0], "a poll is woken"
    lifeline.drain_wake()
    assert not select.select([lifeline.wake_fd], [], [], 0)[0]
    os.kill(os.getpid(), signal.SIGINT)
    assert lifeline.wants_stop()


def test_a_process_whose_parent_is_another_is_an_orphan() -> None:
    assert not ParentWatch(None).is_orphan()
    assert not ParentWatch(os.getppid()).is_orphan()
    watch = ParentWatch(2**22 + 1)
    assert watch.is_orphan()
    assert SignalLifeline(watch).wants_stop()


def test_an_orphan_cleans_up_and_leaves_even_when_its_main_thread_is_stuck(tmp_path: Path) -> None:
    run_dir = tmp_path / "tokenmill-x"
    run_dir.mkdir()
    (run_dir / "frontend.sock").touch()
    left, codes = threading.Event(), []

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    ParentWatch(2**22 + 1, run_dir)._guard(0.0, leave)
    assert left.wait(5) and codes == [1] and not run_dir.exists()


def test_a_child_of_a_living_parent_leaves_the_run_directory_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "tokenmill-x"
    run_dir.mkdir()
    ParentWatch(os.getppid(), run_dir).clean_up()
    ParentWatch(None, run_dir).arm()
    assert run_dir.exists()
    remove_run_dir(run_dir)
    remove_run_dir(run_dir)
    assert not run_dir.exists()


def test_only_run_directories_are_removed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not a run directory"):
        remove_run_dir(tmp_path)
    assert tmp_path.exists()


def test_a_failed_start_reaches_the_supervisor_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_setup_error(tmp_path, "w0", CheckpointError("no tensor 'x' in a.safetensors: download it again"))
    error = read_setup_error(tmp_path, "w0")
    assert isinstance(error, CheckpointError) and error.message.startswith("no tensor")
    assert capsys.readouterr().err == "", "said once, by the supervisor"


def test_a_failed_start_by_hand_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report_setup_error(None, "w0", CheckpointError("no such model"))
    assert capsys.readouterr().err == "tokenmill: no such model\n"


def test_a_failed_start_without_a_reason_still_has_words(tmp_path: Path) -> None:
    error = read_setup_error(tmp_path, "w7")
    assert isinstance(error, SetupError) and "w7 could not start" in error.message
