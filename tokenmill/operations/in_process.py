"""One worker as a thread of this process, for work without a server: the loop, the wire and the bill of real workers.

Not responsible for: restarts; when the engine fails, `check` says so.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import InternalError
from tokenmill.operations.addresses import frontend_endpoint, worker_identity
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker.link import ZmqLink
from tokenmill.operations.worker.loop import EngineLike, WorkerLoop

WORKER_ID = "worker-0"
_LINGER_S = 1.0


class _Lifeline:
    """Ends the loop from another thread; an idle loop looks at it once per heartbeat."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def wants_drain(self) -> bool:
        return False

    def wants_stop(self) -> bool:
        return self._stop.is_set()


class InProcessWorker:
    """`with InProcessWorker(engine, run_dir, …):` beside a Dispatcher that listens in `run_dir`.

    started_s  host-monotonic second from which this worker is paid for
    """

    def __init__(
        self,
        engine: EngineLike,
        run_dir: Path,
        config: OperationsConfig,
        *,
        started_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._run_dir = run_dir
        self._config = config
        self._started_s = started_s
        self._clock = clock or SystemClock()
        self._lifeline = _Lifeline()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lifeline.stop()
        self._thread.join()

    def check(self) -> None:
        """Raise InternalError when the engine has failed."""
        if self._failure is not None:
            raise InternalError(f"the engine failed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        link = ZmqLink(frontend_endpoint(self._run_dir), worker_identity(WORKER_ID, 0))
        try:
            WorkerLoop(
                self._engine,
                link,
                self._lifeline,
                worker_id=WORKER_ID,
                incarnation=0,
                pid=os.getpid(),
                started_s=self._started_s,
                config=self._config,
                clock=self._clock,
            ).run()
        except BaseException as error:
            self._failure = error
        finally:
            link.close(linger_s=_LINGER_S)
