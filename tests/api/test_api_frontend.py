"""The frontend process in this one: real dispatcher, real sockets, a real worker loop with the counting engine."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from tests.api.fakes import BYTE_TOKENIZER, RATE
from tests.api.live import parse_events
from tokenmill.api.arguments import FrontendArgs
from tokenmill.api.config import ApiConfig
from tokenmill.api.server import Frontend, _bind_problem, bind, main, run_frontend
from tokenmill.core.clock import SystemClock
from tokenmill.core.errors import CheckpointError, ResourceError
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.engine.simulated import simulated_engine
from tokenmill.operations.addresses import frontend_endpoint, worker_identity
from tokenmill.operations.child import RUN_DIR_PREFIX
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatcher import Dispatcher
from tokenmill.operations.worker.link import ZmqLink
from tokenmill.operations.worker.loop import WorkerLoop

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=RUN_DIR_PREFIX, dir="/tmp") as path:
        yield Path(path)


class ThreadWorker:
    """A worker whose loop runs in a thread of this process."""

    def __init__(
        self, run_dir: Path, *, step_s: float = 0.001, tokenizer: Path | None = BYTE_TOKENIZER, **engine: Any
    ) -> None:
        self._stopped = threading.Event()
        self._run_dir = run_dir
        self._engine = simulated_engine(
            EngineConfig(**engine),
            name="bytes",
            step_time=LinearStepTime(step_s, 0.0),
            tokenizer_path=None if tokenizer is None else str(tokenizer),
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        link = ZmqLink(frontend_endpoint(self._run_dir), worker_identity("w0", 0))
        WorkerLoop(
            self._engine,
            link,
            self,
            worker_id="w0",
            incarnation=0,
            pid=os.getpid(),
            started_s=time.monotonic(),
            config=OperationsConfig(heartbeat_interval_s=0.02),
            clock=SystemClock(),
        ).run()
        link.close(linger_s=0.0)

    def wants_drain(self) -> bool:
        return False

    def wants_stop(self) -> bool:
        return self._stopped.is_set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


class Running:
    """A frontend that runs beside the test in one loop."""

    def __init__(self, run_dir: Path, config: ApiConfig, operations: OperationsConfig) -> None:
        self.out = io.StringIO()
        self.dispatcher = Dispatcher(frontend_endpoint(run_dir), operations, rate=RATE, expected={"w0": "bytes"})
        self.frontend = Frontend(config, self.dispatcher, rate=RATE, out=self.out)
        self.listener = bind(config)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.task = asyncio.create_task(run_frontend(self.frontend, self.listener))
        self.client = httpx.AsyncClient(base_url=self.url, timeout=20)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                assert not self.task.done() or self.task.result() is None
                await asyncio.sleep(0.005)

    async def until_ready(self) -> None:
        await self.until(lambda: "ready" in self.out.getvalue())

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "abc", **fields})


@asynccontextmanager
async def running(
    run_dir: Path, config: ApiConfig | None = None, operations: OperationsConfig | None = None
) -> AsyncIterator[Running]:
    frontend = Running(run_dir, config or ApiConfig(port=0), operations or OperationsConfig(drain_timeout_s=5))
    try:
        yield frontend
    finally:
        await frontend.client.aclose()
        for _ in range(2):
            frontend.frontend.stop()
        await asyncio.wait([frontend.task], timeout=10)
        assert frontend.task.done(), "the frontend did not stop"


def test_a_deployment_from_start_to_drain(run_dir: Path) -> None:
    """Not ready before the worker is; then banner and ready line; S53, usage and cost through the real fleet."""

    async def run() -> None:
        async with running(run_dir) as server:
            await server.until(lambda: server.listener.fileno() != -1)
            ready = await server.client.get("/ready")
            assert ready.status_code == 503 and "waiting for every worker" in ready.json()["reasons"][0]
            early = await server.complete(model="bytes")
            assert early.status_code == 503 and early.json()["error"]["code"] == "unavailable"
            assert server.out.getvalue() == ""
            with ThreadWorker(run_dir):
                await server.until_ready()
                *banner, last = server.out.getvalue().splitlines()
                assert last == f"tokenmill ready: {server.url} (bytes)"
                assert banner[0].startswith("tokenmill ") and "context 4096" in banner[1] and "$3.6/h" in banner[2]
                assert (await server.client.get("/ready")).status_code == 200
                answer = (await server.complete(max_tokens=5)).json()
                assert answer["choices"][0]["text"] == "defgh"
                assert answer["usage"]["cost"]["usd"] > 0
                long = "x" * 100
                cold, warm = [(await server.complete(prompt=long)).json()["usage"] for _ in range(2)]
                assert cold["prompt_tokens_details"]["cached_tokens"] == 0
                assert warm["prompt_tokens_details"]["cached_tokens"] == 96
                metrics = (await server.client.get("/metrics")).text
                assert 'tokenmill_prefix_cache_hits_total{model_name="bytes"} 96.0' in metrics
                server.frontend.stop()
                await asyncio.wait_for(server.task, 10)

    asyncio.run(run())


def test_many_requests_through_the_fleet(run_dir: Path) -> None:
    """S50, S62: more choices than seats, streamed and not, with stop strings; each counts on without a gap."""

    async def run() -> None:
        async with running(run_dir) as server:
            with ThreadWorker(run_dir, step_s=0.0, max_num_seqs=4):
                await server.until_ready()

                async def one(i: int) -> None:
                    fields: dict[str, Any] = {"max_tokens": 20, "n": 1 + i % 3, "stream": i % 2 == 0}
                    if i % 5 == 0:
                        fields["stop"] = "ij"
                    response = await server.complete(**fields)
                    assert response.status_code == 200
                    expected = "defgh" if i % 5 == 0 else "defghijklmnopqrstuvw"
                    if fields["stream"]:
                        events = [json.loads(e) for e in parse_events(response.text) if e != "[DONE]"]
                        choices = [event["choices"][0] for event in events]
                        for index in range(fields["n"]):
                            assert "".join(c["text"] for c in choices if c["index"] == index) == expected
                    else:
                        assert [c["text"] for c in response.json()["choices"]] == [expected] * fields["n"]

                await asyncio.gather(*(one(i) for i in range(40)))
                await server.until(lambda: server.dispatcher.num_in_flight == 0)

    asyncio.run(run())


def test_disconnect_reaches_the_worker(run_dir: Path) -> None:
    """The worker's step counter stands still soon after the client has left."""

    async def run() -> None:
        async with running(run_dir) as server:
            with ThreadWorker(run_dir, step_s=0.005):
                await server.until_ready()
                async with server.client.stream(
                    "POST", "/v1/completions", json={"prompt": "abc", "max_tokens": 4000, "stream": True}
                ) as stream:
                    async for _ in stream.aiter_lines():
                        break

                def is_idle() -> bool:
                    return (
                        server.dispatcher.num_in_flight == 0 and server.dispatcher.snapshot()[0].stats.num_running == 0
                    )

                await server.until(is_idle)
                assert server.dispatcher.snapshot()[0].stats.generation_tokens_total < 1000

    asyncio.run(run())


def test_drain_finishes_what_runs(run_dir: Path) -> None:
    async def run() -> None:
        async with running(run_dir) as server:
            with ThreadWorker(run_dir, step_s=0.01):
                await server.until_ready()
                answer = asyncio.create_task(server.complete(max_tokens=40))
                await server.until(lambda: server.dispatcher.num_in_flight == 1)
                os.kill(os.getpid(), signal.SIGTERM)
                await server.until(lambda: server.frontend._lifecycle.is_draining)
                refused = await server.complete()
                assert refused.status_code == 503 and refused.headers["retry-after"]
                assert (await answer).json()["usage"]["completion_tokens"] == 40
                await asyncio.wait_for(server.task, 10)

    asyncio.run(run())


def test_second_stop_cuts_off(run_dir: Path) -> None:
    """So does the end of the drain time: what still runs ends with a retryable error, and the process ends."""

    async def run(operations: OperationsConfig, again: bool) -> None:
        async with running(run_dir, operations=operations) as server:
            with ThreadWorker(run_dir, step_s=0.01):
                await server.until_ready()
                answer = asyncio.create_task(server.complete(max_tokens=4000, stream=True))
                await server.until(lambda: server.dispatcher.num_in_flight == 1)
                server.frontend.stop()
                if again:
                    server.frontend.stop()
                started_s = time.monotonic()
                await asyncio.wait_for(server.task, 10)
                assert time.monotonic() - started_s < 8
                response = await answer
                last = list(parse_events(response.text))[-1] if response.status_code == 200 else response.text
                assert json.loads(last)["error"]["code"] == "unavailable"

    asyncio.run(run(OperationsConfig(drain_timeout_s=0.1), again=False))
    asyncio.run(run(OperationsConfig(drain_timeout_s=60), again=True))


def test_a_broken_tokenizer_ends_the_start(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    async def run() -> None:
        server = Running(run_dir, ApiConfig(port=0), OperationsConfig())
        with ThreadWorker(run_dir, tokenizer=tmp_path), pytest.raises(CheckpointError):
            await asyncio.wait_for(server.task, 20)
        await server.client.aclose()

    asyncio.run(run())


# -- the port --


def test_occupied_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"port {port}.*another process.*--port"):
            bind(ApiConfig(port=port))


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "x" * 300])
def test_impossible_hosts(host: str) -> None:
    with pytest.raises(ResourceError, match="--host"):
        bind(ApiConfig(host=host, port=0))


def test_forbidden_port() -> None:
    message = _bind_problem(ApiConfig(port=80), OSError(errno.EACCES, "denied"))
    assert "not permitted" in message and "--port" in message


def test_nagle_is_off(run_dir: Path) -> None:
    """With it, every answer would wait 40 ms for the client's delayed acknowledgement."""
    with bind(ApiConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_main_with_an_occupied_port(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 2, before anything else is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        args = FrontendArgs(run_dir, RATE, {}, api_config=ApiConfig(port=taken.getsockname()[1]))
        assert main(args.to_argv()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and "--port" in printed.err
    assert not list(run_dir.iterdir())


def test_the_process(run_dir: Path) -> None:
    """`python -m tokenmill.api.server` under uvloop: ready line on stdout, SIGTERM ends it with code 0."""
    args = FrontendArgs(run_dir, RATE, {"w0": "bytes"}, api_config=ApiConfig(port=0), slo="ttft=500ms")
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenmill.api.server", *args.to_argv()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        with ThreadWorker(run_dir):
            line = ""
            while "ready" not in line:
                line = process.stdout.readline()
                assert line, "it ended before it was ready"
            url = line.split()[2]
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "abc", "max_tokens": 3}, timeout=20)
            assert answer.json()["choices"][0]["text"] == "def"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
