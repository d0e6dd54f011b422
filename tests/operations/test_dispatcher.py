"""The dispatcher over a real socket, with real worker loops in threads: streams, errors, backpressure, drain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tests.operations.ops_fakes import RATE, FakeLifeline, make_exit, make_frame, make_hello, make_request
from tokenmill.core.clock import SystemClock
from tokenmill.core.errors import (
    ContextLengthError,
    InternalError,
    ModelNotFoundError,
    OverloadedError,
    ResourceError,
    UnavailableError,
    WorkerLostError,
)
from tokenmill.core.request import FinishReason, Request, TokenDelta
from tokenmill.core.wire import Unresponsive, decode_to_supervisor, encode
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.engine.simulated import simulated_engine
from tokenmill.operations.addresses import SUPERVISOR, worker_identity
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatcher import Dispatcher
from tokenmill.operations.members import MemberState
from tokenmill.operations.worker.link import ZmqLink
from tokenmill.operations.worker.loop import WorkerLoop


class ThreadWorker:
    """A real worker loop on a real link, ended by `stop` or `drain`."""

    def __init__(self, endpoint: str, worker_id: str = "w0", incarnation: int = 0, step_s: float = 0.001) -> None:
        self.lifeline = FakeLifeline(10**9)
        self.is_stopped = False
        self.lifeline.wants_stop = lambda: self.is_stopped
        self.engine = simulated_engine(EngineConfig(), name="m", step_time=LinearStepTime(step_s, 0.0))
        self.link = ZmqLink(endpoint, worker_identity(worker_id, incarnation))
        self.loop = WorkerLoop(
            self.engine,
            self.link,
            self.lifeline,
            worker_id=worker_id,
            incarnation=incarnation,
            pid=1,
            started_s=SystemClock().now(),
            config=OperationsConfig(heartbeat_interval_s=0.05),
            clock=SystemClock(),
        )
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        self.loop.run()
        self.link.close(linger_s=1.0)

    def stop(self) -> None:
        self.is_stopped = True
        self.thread.join(10)
        assert not self.thread.is_alive()


class Bench:
    def __init__(self, endpoint: str, config: OperationsConfig) -> None:
        self.endpoint = endpoint
        self.dispatcher = Dispatcher(endpoint, config, rate=RATE, expected={"w0": "m"})
        self.workers: list[ThreadWorker] = []

    async def add_worker(self, worker_id: str, incarnation: int = 0, step_s: float = 0.001) -> None:
        self.workers.append(ThreadWorker(self.endpoint, worker_id, incarnation, step_s))
        await until(lambda: self.is_ready(worker_id))

    def is_ready(self, worker_id: str) -> bool:
        return any(m.worker_id == worker_id and m.state is MemberState.READY for m in self.dispatcher.snapshot())

    async def collect(self, request: Request) -> list[TokenDelta]:
        async with aclosing(self.dispatcher.generate(request)) as deltas:
            return [delta async for delta in deltas]


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def bench(tmp_path: Path, num_workers: int = 1, step_s: float = 0.001, **config: object) -> AsyncIterator[Bench]:
    bench = Bench(f"ipc://{tmp_path}/f.sock", OperationsConfig(**config))  # type: ignore[arg-type]
    async with bench.dispatcher:
        try:
            for index in range(num_workers):
                await bench.add_worker(f"w{index}", step_s=step_s)
            yield bench
        finally:
            for worker in bench.workers:
                await asyncio.to_thread(worker.stop)


def token_ids(deltas: list[TokenDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def test_streams_of_two_workers_count_on(tmp_path: Path) -> None:
    """S32: with the counting engine a doubled, missing or swapped token shows at once."""

    async def main() -> None:
        async with bench(tmp_path, num_workers=2) as b:
            requests = [make_request(f"r{i}", num_tokens=3 * i + 1, max_tokens=20) for i in range(10)]
            answers = await asyncio.gather(*map(b.collect, requests))
            for request, deltas in zip(requests, answers, strict=True):
                first = len(request.prompt_token_ids) + 1
                assert token_ids(deltas) == list(range(first, first + 20))
                assert deltas[-1].finish_reason is FinishReason.LENGTH
            assert b.dispatcher.num_in_flight == 0
            assert [view.stats.generation_tokens_total for view in b.dispatcher.snapshot()] == [100, 100]
            assert b.dispatcher.ledger.request_cost("r3").usd > 0
            assert b.dispatcher.health().is_ready and b.dispatcher.models() == ["m"]
            assert b.dispatcher.cards()["m"].vocab_size == 256

    asyncio.run(main())


def test_typed_errors_are_raised(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as b:
            with pytest.raises(ModelNotFoundError):
                await b.collect(make_request("r", model="nope"))
            with pytest.raises(ContextLengthError, match="5000 tokens"):
                await b.collect(make_request("r", num_tokens=5000))
            assert token_ids(await b.collect(make_request("r"))) == [5, 6, 7, 8]

    asyncio.run(main())


def test_nothing_ready_and_not_started(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, num_workers=0) as b:
            assert b.dispatcher.models() == ["m"] and not b.dispatcher.health().is_ready
            with pytest.raises(UnavailableError, match="w0 starting"):
                await b.collect(make_request("r"))
        with pytest.raises(UnavailableError, match="not running"):
            await b.collect(make_request("r"))

    asyncio.run(main())


def test_leaving_the_iterator_aborts_at_once(tmp_path: Path) -> None:
    """S57"""

    async def main() -> None:
        async with bench(tmp_path) as b:
            async with aclosing(b.dispatcher.generate(make_request("r", max_tokens=4000))) as deltas:
                async for _ in deltas:
                    break
            assert b.dispatcher.num_in_flight == 0
            await until(lambda: b.dispatcher.snapshot()[0].stats.num_running == 0)
            assert not b.workers[0].engine.has_work()
            task = asyncio.create_task(b.collect(make_request("s", max_tokens=4000)))
            await until(lambda: b.dispatcher.num_in_flight == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert b.dispatcher.num_in_flight == 0

    asyncio.run(main())


def test_abort_from_outside_ends_the_iteration(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as b:
            task = asyncio.create_task(b.collect(make_request("r", max_tokens=4000)))
            await until(lambda: b.dispatcher.num_in_flight == 1)
            b.dispatcher.abort("r")
            assert (await task)[-1].finish_reason is FinishReason.ABORT
            b.dispatcher.abort("r")

    asyncio.run(main())


def test_a_slow_reader_gets_merged_tokens_and_holds_nobody_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as b, aclosing(b.dispatcher.generate(make_request("slow", max_tokens=50))) as slow:
            first = await anext(slow)
            assert len(token_ids(await b.collect(make_request("r", max_tokens=60)))) == 60
            rest = [delta async for delta in slow]
            assert len(rest) <= 2, "what waited came as one"
            assert token_ids([first, *rest]) == list(range(5, 55))

    asyncio.run(main())


def test_a_reader_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, max_unread_tokens=10) as b:
            slow = b.dispatcher.generate(make_request("slow", max_tokens=4000))
            await anext(slow)
            await until(lambda: b.dispatcher.num_in_flight == 0)
            held = await anext(slow)
            assert len(held.token_ids) == 11
            with pytest.raises(OverloadedError, match="more than 10 tokens wait"):
                await anext(slow)
            await until(lambda: b.dispatcher.snapshot()[0].stats.num_running == 0)

    asyncio.run(main())


def test_without_migration_a_worker_that_says_goodbye_loses_started_requests(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, step_s=0.01, migration=False) as b:
            deltas = b.dispatcher.generate(make_request("r", max_tokens=4000))
            first = await anext(deltas)
            assert first.token_ids[0] == 5
            b.workers[0].is_stopped = True
            with pytest.raises(WorkerLostError):
                async for _ in deltas:
                    pass
            assert b.dispatcher.cards()["m"].name == "m", "the card stays known"

    asyncio.run(main())


def test_an_exit_notice_lets_the_last_frames_pass(tmp_path: Path) -> None:
    """The supervisor's word and the dead worker's last frame race; the frame wins, if it was sent."""

    async def main() -> None:
        async with bench(tmp_path, num_workers=0) as b:
            context = zmq.asyncio.Context()
            worker, supervisor = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
            worker.setsockopt(zmq.IDENTITY, worker_identity("w0", 0))
            supervisor.setsockopt(zmq.IDENTITY, SUPERVISOR)
            for socket in (worker, supervisor):
                socket.connect(b.endpoint)
            await worker.send(encode(make_hello()))
            await until(lambda: b.dispatcher.health().is_ready)
            task = asyncio.create_task(b.collect(make_request("r")))
            await worker.recv()
            await supervisor.send(encode(make_exit(will_restart=False)))
            last = TokenDelta(request_id="r", token_ids=(5,), finish_reason=FinishReason.LENGTH)
            await worker.send(encode(make_frame("w0", 0, last)))
            assert token_ids(await task) == [5]
            await until(lambda: b.dispatcher.snapshot()[0].state is MemberState.LOST)
            context.destroy(linger=0)

    asyncio.run(main())


def test_silence_is_told_to_the_supervisor(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, num_workers=0, heartbeat_timeout_s=0.3) as b:
            context = zmq.asyncio.Context()
            worker, supervisor = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
            worker.setsockopt(zmq.IDENTITY, worker_identity("w0", 0))
            supervisor.setsockopt(zmq.IDENTITY, SUPERVISOR)
            for socket in (worker, supervisor):
                socket.connect(b.endpoint)
            await supervisor.send(b"\xc1 not a message")
            await worker.send(encode(make_hello()))
            told = decode_to_supervisor(await asyncio.wait_for(supervisor.recv(), 10))
            assert isinstance(told, Unresponsive) and "silent for" in told.reason
            context.destroy(linger=0)

    asyncio.run(main())


def test_a_peer_that_vanished_is_noticed_when_it_is_sent_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, num_workers=0) as b:
            context = zmq.asyncio.Context()
            worker = context.socket(zmq.DEALER)
            worker.setsockopt(zmq.IDENTITY, worker_identity("w0", 0))
            worker.connect(b.endpoint)
            await worker.send(encode(make_hello()))
            await until(lambda: b.dispatcher.health().is_ready)
            context.destroy(linger=0)
            await asyncio.sleep(0.05)
            task = asyncio.create_task(b.collect(make_request("r")))
            await until(lambda: b.dispatcher.snapshot()[0].state is MemberState.LOST)
            assert b.dispatcher.num_waiting == 1, "it waits for the worker to come back"
            await b.add_worker("w0", 1)
            assert token_ids(await task) == [5, 6, 7, 8]

    asyncio.run(main())


def test_a_new_frontend_is_introduced_to_the_workers_of_the_old(tmp_path: Path) -> None:
    """The worker drops what the dead frontend had asked for, and its bill goes on where the new one begins."""

    async def main() -> None:
        async with bench(tmp_path, step_s=0.01) as b:
            orphaned = asyncio.create_task(b.collect(make_request("r", max_tokens=4000)))
            await until(lambda: b.dispatcher.num_in_flight == 1)
            await b.dispatcher.close()
            with pytest.raises(UnavailableError):
                await orphaned
            async with Dispatcher(b.endpoint, OperationsConfig(), rate=RATE) as second:
                await until(lambda: second.health().is_ready)
                assert not b.workers[0].engine.has_work()
                async with aclosing(second.generate(make_request("s"))) as deltas:
                    assert token_ids([delta async for delta in deltas]) == [5, 6, 7, 8]
                balance = second.ledger.check_balance(SystemClock().now())
                assert balance.is_balanced and balance.process_s < 5

    asyncio.run(main())


def test_drain_lets_finish_and_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, step_s=0.01) as b:
            task = asyncio.create_task(b.collect(make_request("r", max_tokens=20)))
            await until(lambda: b.dispatcher.num_in_flight == 1)
            drain = asyncio.create_task(b.dispatcher.drain())
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match="shutting down"):
                await b.collect(make_request("s"))
            assert not b.dispatcher.health().is_ready
            assert await drain is True
            assert len(token_ids(await task)) == 20
            assert await b.dispatcher.drain() is True

    asyncio.run(main())


def test_a_drain_that_runs_out_of_time_cuts_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, step_s=0.01) as b:
            task = asyncio.create_task(b.collect(make_request("r", max_tokens=4000)))
            await until(lambda: b.dispatcher.num_in_flight == 1)
            assert await b.dispatcher.drain(0.05) is False
            with pytest.raises(UnavailableError, match="before request r had ended"):
                await task

    asyncio.run(main())


def test_a_broken_receiver_fails_everybody_and_shows_in_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with bench(tmp_path, step_s=0.01) as b:
            task = asyncio.create_task(b.collect(make_request("r", max_tokens=4000)))
            await until(lambda: b.dispatcher.num_in_flight == 1)

            def fail(parts: list[bytes]) -> None:
                raise ZeroDivisionError("boom")

            monkeypatch.setattr(b.dispatcher, "_take", fail)
            with pytest.raises(InternalError, match="receive task failed"):
                await task
            health = b.dispatcher.health()
            assert not health.is_healthy and not health.is_ready and "boom" in health.reasons[0]
            with pytest.raises(InternalError):
                await b.collect(make_request("s"))

    asyncio.run(main())


def test_an_occupied_or_impossible_address_is_a_resource_error(tmp_path: Path) -> None:
    async def main() -> None:
        dispatcher = Dispatcher(f"ipc://{tmp_path}/no/such/dir/f.sock", OperationsConfig(), rate=RATE)
        with pytest.raises(ResourceError, match="cannot listen for workers"):
            await dispatcher.start()

    asyncio.run(main())
