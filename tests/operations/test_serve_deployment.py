"""serve() in this process, over a launcher whose processes exist on paper only; and the local launcher itself."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tokenmill.core.errors import CheckpointError, ResourceError
from tokenmill.core.wire import Unresponsive, WorkerExited, decode_to_frontend, encode
from tokenmill.operations.addresses import SUPERVISOR, frontend_endpoint
from tokenmill.operations.child import report_setup_error
from tokenmill.operations.config import OperationsConfig, RestartConfig
from tokenmill.operations.launcher.base import Ended
from tokenmill.operations.launcher.local import LocalLauncher
from tokenmill.operations.serve import LaunchContext, ProcessSpec, make_run_dir, serve

CONFIG = OperationsConfig(stop_timeout_s=2.0, restart=RestartConfig(first_delay_s=0.01, max_crashes=2))


class PaperLauncher:
    """Obedient processes: they run until they are told to go, or the test ends them."""

    def __init__(self) -> None:
        self.running: dict[str, Sequence[str]] = {}
        self.log: list[str] = []
        self.ends: asyncio.Queue[Ended] = asyncio.Queue()
        self.is_closed = False

    async def launch(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
        self.running[name] = argv
        self.log.append(f"launch {name}")
        return 1

    def end(self, name: str, exit_code: int) -> None:
        if self.running.pop(name, None) is not None:
            self.ends.put_nowait(Ended(name, exit_code))

    def terminate(self, name: str) -> None:
        self.log.append(f"terminate {name}")
        self.end(name, 0)

    def kill(self, name: str) -> None:
        self.log.append(f"kill {name}")
        self.end(name, -9)

    async def next_end(self) -> Ended:
        return await self.ends.get()

    async def close(self) -> None:
        self.is_closed = True


class Bench:
    """A serve() under way, with a frontend socket that the test reads."""

    def __init__(self, tmp_path: Path, num_workers: int = 1) -> None:
        self.launcher = PaperLauncher()
        self.contexts: list[LaunchContext] = []
        specs = [ProcessSpec(name, self.argv) for name in ("frontend", *(f"w{i}" for i in range(num_workers)))]
        self.task = asyncio.create_task(serve(specs[0], specs[1:], CONFIG, launcher=self.launcher))

    def argv(self, context: LaunchContext) -> list[str]:
        self.contexts.append(context)
        return [context.name, str(context.incarnation)]

    async def until(self, line: str, count: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.launcher.log.count(line) < count:
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_signal_drains_in_order_and_leaves_no_directory(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, num_workers=2)
        await bench.until("launch w1")
        run_dir = bench.contexts[0].run_dir
        assert run_dir.parent == tmp_path and stat.S_IMODE(run_dir.stat().st_mode) == 0o700
        assert {context.parent_pid for context in bench.contexts} == {os.getpid()}
        os.kill(os.getpid(), signal.SIGTERM)
        assert await bench.task == 0
        assert bench.launcher.log[3:] == ["terminate frontend", "terminate w0", "terminate w1"]
        assert bench.launcher.is_closed and not list(tmp_path.iterdir())

    asyncio.run(main())


def test_ends_are_reported_to_the_frontend_and_workers_restarted(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        await bench.until("launch w0")
        context = zmq.asyncio.Context()
        frontend = context.socket(zmq.ROUTER)
        frontend.bind(frontend_endpoint(bench.contexts[0].run_dir))
        bench.launcher.end("w0", -9)
        identity, payload = await asyncio.wait_for(frontend.recv_multipart(), 10)
        notice = decode_to_frontend(payload)
        assert identity == SUPERVISOR and isinstance(notice, WorkerExited)
        assert (notice.worker_id, notice.incarnation, notice.exit_code, notice.will_restart) == ("w0", 0, -9, True)
        await bench.until("launch w0", 2)
        assert bench.contexts[-1].incarnation == 1
        await frontend.send_multipart([SUPERVISOR, b"\xc1 no message"])
        await frontend.send_multipart([SUPERVISOR, encode(Unresponsive("w0", 0, "an old life"))])
        await frontend.send_multipart([SUPERVISOR, encode(Unresponsive("w0", 1, "silent"))])
        await bench.until("launch w0", 3)
        assert bench.launcher.log.count("kill w0") == 1
        context.destroy(linger=0)
        os.kill(os.getpid(), signal.SIGINT)
        assert await bench.task == 0

    asyncio.run(main())


def test_a_failed_start_is_raised_as_its_error(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, num_workers=2)
        await bench.until("launch w1")
        report_setup_error(bench.contexts[0].run_dir, "w1", CheckpointError("weights are torn"))
        bench.launcher.end("w1", 2)
        with pytest.raises(CheckpointError, match="weights are torn"):
            await bench.task
        assert not list(tmp_path.iterdir())

    asyncio.run(main())


def test_giving_up_is_exit_code_1(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        for life in range(1, 4):
            await bench.until("launch w0", life)
            bench.launcher.end("w0", 1)
        assert await bench.task == 1

    asyncio.run(main())


def test_a_launcher_that_cannot_launch_ends_it(tmp_path: Path) -> None:
    async def main() -> None:
        spec = ProcessSpec("frontend", lambda context: ["/nonexistent/program"])
        with pytest.raises(ResourceError, match="cannot start frontend"):
            await serve(spec, [ProcessSpec("w0", lambda context: [sys.executable, "-c", ""])], CONFIG)
        assert not list(tmp_path.iterdir())

    asyncio.run(main())


def test_a_broken_helper_task_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)

        async def broken() -> Ended:
            raise ZeroDivisionError("boom")

        monkeypatch.setattr(bench.launcher, "next_end", broken)
        with pytest.raises(ZeroDivisionError):
            await bench.task
        assert bench.launcher.is_closed and not list(tmp_path.iterdir())

    asyncio.run(main())


def test_a_run_directory_needs_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(ResourceError, match=r"too long for a socket.*set TMPDIR"):
        make_run_dir()
    assert not list(deep.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(ResourceError, match="cannot create a run directory"):
        make_run_dir()


def test_two_deployments_have_two_directories() -> None:
    first, second = make_run_dir(), make_run_dir()
    assert first != second and first.name.startswith("tokenmill-")


# -- the local launcher --


def script(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_processes_are_started_told_to_go_and_reported() -> None:
    async def main() -> None:
        launcher = LocalLauncher()
        pid = await launcher.launch("sleeper", script("import time; time.sleep(60)"), {})
        assert os.getpgid(pid) == pid, "its own process group"
        launcher.terminate("sleeper")
        assert await asyncio.wait_for(launcher.next_end(), 10) == Ended("sleeper", -signal.SIGTERM)
        await launcher.launch("coder", script("import os, sys; sys.exit(int(os.environ['CODE']))"), {"CODE": "7"})
        assert await asyncio.wait_for(launcher.next_end(), 10) == Ended("coder", 7)
        for name in ("coder", "nobody"):
            launcher.terminate(name)
            launcher.kill(name)
        await launcher.close()

    asyncio.run(main())


def test_close_kills_what_runs_with_its_children(tmp_path: Path) -> None:
    async def main() -> None:
        launcher = LocalLauncher()
        code = (
            "import signal, subprocess, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
            f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid) + ' ')\n"
            "time.sleep(60)"
        )
        await launcher.launch("stubborn", script(code), {})
        async with asyncio.timeout(10):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith(" "):
                await asyncio.sleep(0.01)
        grandchild = int((tmp_path / "pid").read_text())
        launcher.terminate("stubborn")
        await launcher.close()
        assert await asyncio.wait_for(launcher.next_end(), 10) == Ended("stubborn", -signal.SIGKILL)
        async with asyncio.timeout(10):
            while (
                Path(f"/proc/{grandchild}/stat").exists() and " Z " not in Path(f"/proc/{grandchild}/stat").read_text()
            ):
                await asyncio.sleep(0.01)

    asyncio.run(main())
