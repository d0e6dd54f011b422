"""What every child process of the supervisor does: hear signals, notice the parent's death, report a failed start.

Frontend and workers share it. Not responsible for: what they do when told to drain or stop.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tokenmill.core.errors import SetupError, TokenmillError, from_code

RUN_DIR_PREFIX = "tokenmill-"
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
_GRACE_S = 2.0


class ParentWatch:
    """Ends this process when its parent is gone, also when its main thread is stuck in a long call.

    The kernel sends SIGTERM at the parent's death (Linux); a thread compares the parent's pid as well and, after a
    grace, removes the run directory and exits. `parent_pid` None: started by hand, nothing is watched.
    """

    def __init__(self, parent_pid: int | None, run_dir: Path | None = None) -> None:
        self._parent_pid = parent_pid
        self._run_dir = run_dir

    def is_orphan(self) -> bool:
        return self._parent_pid is not None and os.getppid() != self._parent_pid

    def arm(self, *, grace_s: float = _GRACE_S, leave: Callable[[int], object] = os._exit) -> None:
        """Call early in the main thread of the process; `leave` ends it."""
        if self._parent_pid is None:
            return
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        threading.Thread(target=self._guard, args=(grace_s, leave), name="parent-watch", daemon=True).start()

    def _guard(self, grace_s: float, leave: Callable[[int], object]) -> None:
        while not self.is_orphan():
            time.sleep(_POLL_S)
        time.sleep(grace_s)
        self.clean_up()
        leave(1)

    def clean_up(self) -> None:
        """The supervisor removes the run directory; when it is dead, its children do."""
        if self._run_dir is not None and self.is_orphan():
            remove_run_dir(self._run_dir)


def remove_run_dir(path: Path) -> None:
    """Remove a deployment's run directory and nothing else; fine when someone else already did."""
    assert path.name.startswith(RUN_DIR_PREFIX), f"{path} is not a run directory"
    shutil.rmtree(path, ignore_errors=True)


class SignalLifeline:
    """SIGTERM or SIGINT: drain; a second one, or the parent's death: stop. Wakes a poll through `wake_fd`."""

    def __init__(self, watch: ParentWatch) -> None:
        self._watch = watch
        self._num_signals = 0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def wake_fd(self) -> int:
        return self._wake_read

    def install(self) -> None:
        """Take the signals over; only the main thread may."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._note)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _note(self, signum: int, frame: object) -> None:
        self._num_signals += 1

    def drain_wake(self) -> None:
        """Make wake_fd unreadable again."""
        try:
            while os.read(self._wake_read, 512):
                pass
        except BlockingIOError:
            pass

    def wants_drain(self) -> bool:
        return self._num_signals >= 1

    def wants_stop(self) -> bool:
        return self._num_signals >= 2 or self._watch.is_orphan()


class _FailedStart(msgspec.Struct):
    code: str
    message: str


def report_setup_error(run_dir: Path | None, name: str, error: TokenmillError) -> None:
    """Tell why process `name` could not start: through the run directory to the supervisor, else on stderr."""
    if run_dir is None:
        print(f"tokenmill: {error.message}", file=sys.stderr, flush=True)
    else:
        _failure_path(run_dir, name).write_bytes(msgspec.json.encode(_FailedStart(error.code, error.message)))


def read_setup_error(run_dir: Path, name: str) -> TokenmillError:
    """What `report_setup_error` left there."""
    try:
        failure = msgspec.json.decode(_failure_path(run_dir, name).read_bytes(), type=_FailedStart)
    except (OSError, msgspec.DecodeError):
        return SetupError(f"{name} could not start (exit code 2) and left no reason: see its output above")
    return from_code(failure.code, failure.message)


def _failure_path(run_dir: Path, name: str) -> Path:
    return run_dir / f"{name}.failed.json"
