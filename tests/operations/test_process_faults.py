"""Real processes and what befalls them: kills, signals, silence, failed starts. Counting workers, so no token hides."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.operations.ops_processes import Answer, Fleet, eventually, is_alive
from tokenmill.operations.supervisor import ECHO_S

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("processes"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two workers at 100 steps a second; each test leaves them ready."""
    with Fleet(workers=2, simulated={"fixed_s": 0.01}) as fleet:
        fleet.wait_ready()
        yield fleet
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end() == 0
        fleet.assert_nothing_left()


def run_streams(fleet: Fleet, prefix: str, count: int, **asked: object) -> list[Answer]:
    async def main() -> list[Answer]:
        return await asyncio.gather(*(fleet.collect(f"{prefix}{i}", **asked) for i in range(count)))

    return asyncio.run(main())


def num_running(fleet: Fleet) -> list[int]:
    return [member["stats"]["num_running"] + member["stats"]["num_waiting"] for member in fleet.members().values()]


def wait_life(fleet: Fleet, **incarnations: int) -> None:
    """Wait until these workers are ready in these lives."""

    def are_there() -> bool:
        members = fleet.members()
        return all(
            members[name]["incarnation"] >= life and members[name]["state"] == "ready"
            for name, life in incarnations.items()
        )

    eventually(are_there, f"{incarnations}")


def test_kill_in_mid_stream(fleet: Fleet) -> None:
    """Streams of the dead worker go on elsewhere, without a wrong, repeated or lost token; the others do not notice."""
    frontend, victim = fleet.pid_of("frontend"), fleet.pid_of("w0")

    async def main() -> list[Answer]:
        def kill() -> None:
            if is_alive(victim):
                os.kill(victim, signal.SIGKILL)

        return await asyncio.gather(
            *(fleet.collect(f"mid{i}", on_first=kill if i == 0 else None, max_tokens=200) for i in range(8))
        )

    answers = asyncio.run(main())
    for answer in answers:
        answer.assert_counts()
    assert [answer.error for answer in answers] == [None] * 8
    assert {len(answer.ids) for answer in answers} == {200}
    assert fleet.pid_of("frontend") == frontend, "the frontend stays up"
    wait_life(fleet, w0=1)
    assert fleet.pid_of("w0") != victim


def test_leaving_frees_at_once(fleet: Fleet) -> None:
    """S57: queued, in the prompt or decoding: a client that leaves frees everything."""
    for index, wait_for in enumerate((0, 1, 5)):

        async def leave_after(num_lines: int, request_id: str) -> None:
            stream = fleet.stream(request_id, num_tokens=2000, max_tokens=2000)
            if num_lines == 0:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.02)
            for _ in range(num_lines):
                await anext(stream)
            await stream.aclose()

        asyncio.run(leave_after(wait_for, f"leave{index}"))
        eventually(lambda: num_running(fleet) == [0, 0], f"nothing runs: {num_running(fleet)}", 2)
    eventually(lambda: {m["stats"]["kv_usage"] for m in fleet.members().values()} == {0.0}, "no block in use", 2)


def test_the_first_aborted_request_harms_nobody(fleet: Fleet) -> None:
    """S60, S31: clients that leave at random between others that stay; all counts return to zero."""

    async def main() -> list[Answer]:
        async def leave(index: int) -> None:
            async for _ in (stream := fleet.stream(f"go{index}", num_tokens=40 * index + 1, max_tokens=500)):
                break
            await stream.aclose()

        _, answers = await asyncio.gather(
            asyncio.gather(*(leave(i) for i in range(16))),
            asyncio.gather(*(fleet.collect(f"stay{i}", num_tokens=60 * i + 4, max_tokens=40) for i in range(16))),
        )
        return answers

    for index, answer in enumerate(asyncio.run(main())):
        answer.assert_counts(60 * index + 4)
        assert len(answer.ids) == 40
    eventually(lambda: num_running(fleet) == [0, 0], "nothing runs", 2)
    assert [member["num_in_flight"] for member in fleet.members().values()] == [0, 0]


def test_a_killed_frontend_is_restarted_and_finds_its_workers(fleet: Fleet) -> None:
    workers = fleet.pid_of("w0"), fleet.pid_of("w1")
    frontend = fleet.pid_of("frontend")

    async def main() -> Answer:
        return await fleet.collect(
            "cut", on_first=lambda: os.kill(frontend, signal.SIGKILL), num_tokens=4, max_tokens=4000
        )

    assert asyncio.run(main()).finish is None
    eventually(lambda: not is_alive(frontend), "the old frontend gone")
    fleet.wait_ready()
    assert fleet.pid_of("frontend") != frontend
    assert (fleet.pid_of("w0"), fleet.pid_of("w1")) == workers, "the same processes said Hello again"
    eventually(lambda: num_running(fleet) == [0, 0], "the dead frontend's requests are dropped", 2)
    for answer in run_streams(fleet, "after", 4, max_tokens=10):
        answer.assert_counts()
        assert len(answer.ids) == 10
    balance = fleet.ask("balance", now_s=time.monotonic())
    assert balance["is_balanced"], "the new ledger bills from where it took over"


def test_the_bill_covers_every_process_second(fleet: Fleet) -> None:
    run_streams(fleet, "bill", 4, max_tokens=20)
    incarnation = fleet.members()["w1"]["incarnation"]
    os.kill(fleet.pid_of("w1"), signal.SIGKILL)
    wait_life(fleet, w1=incarnation + 1)
    assert fleet.ask("balance", now_s=time.monotonic())["is_balanced"]
    seconds = fleet.ask("time")
    assert all(seconds[line] > 0 for line in ("prefill", "decode", "idle", "startup", "lost")), f"{seconds}"


def test_kill_before_the_first_token_moves_the_requests() -> None:
    with Fleet(workers=2, simulated={"fixed_s": 0.4}) as fleet:
        fleet.wait_ready()
        victim = fleet.pid_of("w0")

        async def main() -> list[Answer]:
            async def kill_soon() -> None:
                while sum(member["num_in_flight"] for member in await asyncio.to_thread(fleet.ask, "members")) < 6:
                    await asyncio.sleep(0.01)
                os.kill(victim, signal.SIGKILL)

            *answers, _ = await asyncio.gather(*(fleet.collect(f"r{i}", max_tokens=3) for i in range(6)), kill_soon())
            return answers

        for answer in asyncio.run(main()):
            assert answer.error is None and len(answer.ids) == 3
            answer.assert_counts()


def test_the_only_worker_dies_first_and_its_request_waits_for_the_next_life() -> None:
    with Fleet(simulated={"fixed_s": 0.5}) as fleet:
        fleet.wait_ready()
        victim = fleet.pid_of("w0")

        async def main() -> Answer:
            task = asyncio.create_task(fleet.collect("r", max_tokens=2))
            while not (await asyncio.to_thread(fleet.ask, "members"))[0]["num_in_flight"]:
                await asyncio.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
            return await task

        answer = asyncio.run(main())
        assert answer.error is None and answer.ids == [5, 6]
        assert fleet.members()["w0"]["incarnation"] == 1


def test_sigterm_drains() -> None:
    """What runs ends whole, what comes is refused, exit code 0, nothing left."""
    with Fleet(simulated={"fixed_s": 0.02}) as fleet:
        fleet.wait_ready()

        async def main() -> tuple[Answer, Answer]:
            task = asyncio.create_task(
                fleet.collect("r", on_first=lambda: fleet.process.send_signal(signal.SIGTERM), max_tokens=60)
            )
            while not (await asyncio.to_thread(fleet.ask, "health"))["reasons"]:
                await asyncio.sleep(0.01)
            late = await fleet.collect("late")
            return await task, late

        answer, late = asyncio.run(main())
        answer.assert_counts()
        assert len(answer.ids) == 60 and answer.finish == "length"
        assert late.error["code"] == "unavailable" and "shutting down" in late.error["message"]
        assert fleet.end() == 0
        fleet.assert_nothing_left()


def test_a_drain_has_an_end() -> None:
    operations = {"drain_timeout_s": 0.5, "stop_timeout_s": 1.0}
    with Fleet(simulated={"fixed_s": 0.02}, operations=operations) as fleet:
        fleet.wait_ready()

        async def main() -> Answer:
            return await fleet.collect("r", on_first=lambda: fleet.process.send_signal(signal.SIGTERM), max_tokens=4000)

        answer = asyncio.run(main())
        answer.assert_counts()
        assert answer.error["code"] == "unavailable" and answer.error["retryable"]
        assert fleet.end() == 0
        fleet.assert_nothing_left()


def test_a_second_sigterm_stops() -> None:
    with Fleet(workers=2, simulated={"fixed_s": 0.02}) as fleet:
        fleet.wait_ready()

        def stop() -> None:
            fleet.process.send_signal(signal.SIGTERM)
            eventually(lambda: fleet.ask("health")["reasons"], "draining")
            time.sleep(ECHO_S)  # sooner it would be an echo of the first
            fleet.process.send_signal(signal.SIGTERM)

        async def main() -> Answer:
            task = asyncio.create_task(fleet.collect("r", max_tokens=4000))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(stop)
            return await task

        answer = asyncio.run(main())
        started_s = time.monotonic()
        assert answer.finish is None
        assert fleet.end() == 1
        assert time.monotonic() - started_s < 5
        fleet.assert_nothing_left()


def test_nothing_outlives_a_killed_supervisor() -> None:
    with Fleet(workers=2, simulated={"fixed_s": 0.02}) as fleet:
        fleet.wait_ready()

        async def main() -> Answer:
            return await fleet.collect("r", on_first=fleet.process.kill, max_tokens=4000)

        asyncio.run(main())
        fleet.end()
        assert len(fleet.seen) == 3
        fleet.assert_nothing_left()


def test_a_silent_worker_turns_health_red_and_is_replaced() -> None:
    """S62: its process lives and says nothing; health says so, its requests move, it is replaced."""
    operations = {"heartbeat_timeout_s": 3.0, "stall_timeout_s": 0.5}
    with Fleet(workers=2, simulated={"fixed_s": 0.05}, operations=operations) as fleet:
        fleet.wait_ready()
        victim = fleet.pid_of("w0")
        os.kill(victim, signal.SIGSTOP)

        async def main() -> tuple[list[Answer], dict]:
            tasks = [asyncio.create_task(fleet.collect(f"r{i}", max_tokens=5)) for i in range(4)]
            while (health := await asyncio.to_thread(fleet.ask, "health"))["is_healthy"]:
                await asyncio.sleep(0.02)
            return await asyncio.gather(*tasks), health

        answers, health = asyncio.run(main())
        assert "worker w0" in health["reasons"][0] and "no progress" in health["reasons"][0]
        for answer in answers:
            assert answer.error is None and len(answer.ids) == 5
            answer.assert_counts()
        eventually(lambda: not is_alive(victim), "the silent process was killed")
        wait_life(fleet, w0=1)
        assert fleet.ask("health")["is_healthy"]


def test_a_request_that_breaks_engines_is_given_up_and_others_are_served() -> None:
    """The engine raises: its process reports, ends and is restarted; the culprit fails after two workers."""
    poisoned = "--worker-module=tests.operations.ops_poisoned_worker"
    with Fleet(poisoned, workers=2, operations={"max_attempts": 2}) as fleet:
        fleet.wait_ready()

        async def main() -> tuple[Answer, list[Answer]]:
            culprit = await fleet.collect("culprit", num_tokens=13)
            assert culprit.error is not None
            return culprit, await asyncio.gather(*(fleet.collect(f"r{i}", max_tokens=3) for i in range(4)))

        culprit, others = asyncio.run(main())
        assert culprit.error["code"] == "worker_lost" and "2 workers were tried" in culprit.error["message"]
        assert {answer.error["code"] for answer in others if answer.error} <= {"unavailable"}
        wait_life(fleet, w0=1, w1=1)
        for answer in run_streams(fleet, "again", 4, max_tokens=3):
            assert answer.ids == [5, 6, 7]
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end() == 0
        assert fleet.stderr().count("RuntimeError: thirteen") == 2


def test_a_worker_that_cannot_start_ends_it_all_with_one_line() -> None:
    with Fleet("--engine=native", "--model=/nonexistent/model", workers=2) as fleet:
        assert fleet.end(60) == 2
        (line,) = [line for line in fleet.stderr().splitlines() if not line.startswith("serve ")]
        assert line.startswith("error: ") and "/nonexistent/model" in line
        fleet.assert_nothing_left()


def test_a_frontend_that_cannot_start_ends_it_all_with_one_line() -> None:
    with Fleet("--fail-frontend=port 8000 is taken: choose another") as fleet:
        assert fleet.end(60) == 2
        (line,) = [line for line in fleet.stderr().splitlines() if not line.startswith("serve ")]
        assert line == "error: port 8000 is taken: choose another"
        fleet.assert_nothing_left()


def test_a_worker_that_keeps_dying_is_given_up() -> None:
    restart = {"max_crashes": 2, "first_delay_s": 0.05, "window_s": 120}
    with Fleet(operations={"restart": restart}) as fleet:
        fleet.wait_ready()
        for incarnation in range(3):
            eventually(
                lambda incarnation=incarnation: (
                    fleet.members()["w0"]["incarnation"] == incarnation and fleet.members()["w0"]["state"] == "ready"
                ),
                f"life {incarnation}",
            )
            os.kill(fleet.pid_of("w0"), signal.SIGKILL)
        assert fleet.end() == 1
        assert "every worker keeps failing" in fleet.stderr()
        fleet.assert_nothing_left()
