"""One real deployment end to end: two counting workers, streams, a killed worker, drain, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.operations.ops_processes import Fleet, eventually


@pytest.mark.xdist_group("processes")
def test_serve_kill_drain() -> None:
    with Fleet(workers=2, simulated={"fixed_s": 0.005}) as fleet:
        fleet.wait_ready()
        (run_dir,) = fleet.run_dirs
        assert run_dir.stat().st_mode & 0o777 == 0o700

        async def eight() -> list:
            return await asyncio.gather(*(fleet.collect(f"r{i}", num_tokens=9, max_tokens=20) for i in range(8)))

        for answer in asyncio.run(eight()):
            answer.assert_counts(9)
            assert (len(answer.ids), answer.finish) == (20, "length")
        totals = [member["stats"]["generation_tokens_total"] for member in fleet.members().values()]
        assert totals == [80, 80], "round robin"

        os.kill(fleet.pid_of("w0"), signal.SIGKILL)
        eventually(lambda: fleet.members()["w0"]["incarnation"] == 1 and fleet.ask("health")["is_ready"], "restart")
        assert fleet.ask("balance", now_s=time.monotonic())["is_balanced"]

        fleet.note_pids()
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.end() == 0
        fleet.assert_nothing_left()
