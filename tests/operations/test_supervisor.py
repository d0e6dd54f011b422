"""The supervisor's decisions: restart with back-off, give up, drain, stop; and that it always comes to an end."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from tokenmill.core.wire import WorkerExited
from tokenmill.operations.config import OperationsConfig, RestartConfig
from tokenmill.operations.supervisor import Finish, Kill, Launch, Order, Phase, Report, Supervisor, Terminate

CONFIG = OperationsConfig(
    drain_timeout_s=30.0,
    stop_timeout_s=5.0,
    restart=RestartConfig(first_delay_s=0.1, max_delay_s=1.0, max_crashes=3, window_s=60.0),
)


def started(*workers: str, config: OperationsConfig = CONFIG) -> Supervisor:
    supervisor = Supervisor("frontend", workers or ("w0", "w1"), config)
    assert supervisor.start(0.0) == [Launch(name, 0) for name in ("frontend", *(workers or ("w0", "w1")))]
    return supervisor


def notice(name: str, incarnation: int, exit_code: int, at_s: float, started_s: float, *, will_restart: bool) -> Report:
    return Report(
        WorkerExited(
            worker_id=name,
            incarnation=incarnation,
            exit_code=exit_code,
            at_s=at_s,
            will_restart=will_restart,
            started_s=started_s,
        )
    )


def test_names_are_unique() -> None:
    with pytest.raises(AssertionError, match="not unique"):
        Supervisor("frontend", ["w0", "w0"], CONFIG)


def test_a_crashed_worker_is_reported_and_comes_back_after_a_delay() -> None:
    supervisor = started()
    assert supervisor.next_tick_s() is None
    assert supervisor.exited("w0", -9, 10.0) == [notice("w0", 0, -9, 10.0, 0.0, will_restart=True)]
    assert supervisor.next_tick_s() == pytest.approx(10.1)
    assert supervisor.tick(10.05) == []
    assert supervisor.tick(10.2) == [Launch("w0", 1)]
    assert supervisor.exited("w0", 1, 11.0) == [notice("w0", 1, 1, 11.0, 10.2, will_restart=True)]
    assert supervisor.next_tick_s() == pytest.approx(11.2), "twice as long"


def test_delays_grow_to_a_limit_and_are_forgotten_after_the_window() -> None:
    supervisor = started(config=CONFIG.model_copy(update={"restart": RestartConfig(max_crashes=20, max_delay_s=1.0)}))
    delays = []
    for second in range(8):
        supervisor.exited("w0", 1, float(second))
        delays.append(supervisor.next_tick_s() - second)
        supervisor.tick(second + 1.0)
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0])
    supervisor.exited("w0", 1, 500.0)
    assert supervisor.next_tick_s() - 500.0 == pytest.approx(0.1)


def test_a_crash_loop_is_given_up_while_others_go_on() -> None:
    supervisor = started()
    for second in range(3):
        supervisor.exited("w0", 1, float(second))
        supervisor.tick(second + 0.9)
    assert supervisor.exited("w0", 1, 3.0) == [notice("w0", 3, 1, 3.0, 2.9, will_restart=False)]
    assert supervisor.phase is Phase.RUNNING and supervisor.next_tick_s() is None


def test_when_the_last_worker_is_given_up_all_ends() -> None:
    supervisor = started("w0")
    for second in range(3):
        supervisor.exited("w0", 1, float(second))
        supervisor.tick(second + 0.9)
    report, kill = supervisor.exited("w0", 1, 3.0)
    assert not report.notice.will_restart and kill == Kill("frontend")
    (finish,) = supervisor.exited("frontend", -9, 3.1)
    assert finish.exit_code == 1 and "every worker keeps failing" in finish.message


def test_a_frontend_is_restarted_and_not_reported() -> None:
    supervisor = started()
    assert supervisor.exited("frontend", -9, 1.0) == []
    assert supervisor.tick(1.2) == [Launch("frontend", 1)]
    for second in (2, 3):
        supervisor.exited("frontend", 1, float(second))
        supervisor.tick(second + 0.9)
    assert supervisor.exited("frontend", 1, 4.0) == [Kill("w0"), Kill("w1")]
    supervisor.exited("w0", -9, 4.1)
    _, finish = supervisor.exited("w1", -9, 4.2)
    assert finish.exit_code == 1 and "frontend keeps failing" in finish.message


def test_a_new_frontend_is_told_who_was_given_up() -> None:
    supervisor = started()
    for second in range(3):
        supervisor.exited("w0", 1, float(second))
        supervisor.tick(second + 0.9)
    (report,) = supervisor.exited("w0", 1, 3.0)
    supervisor.exited("frontend", -9, 4.0)
    launch, again = supervisor.tick(5.0)
    assert launch == Launch("frontend", 1)
    assert again.notice.started_s is None, "the old frontend billed it"
    assert msgspec.structs.replace(again.notice, started_s=2.9) == report.notice


def test_a_failed_setup_at_start_ends_it_all() -> None:
    supervisor = started()
    report, *kills = supervisor.exited("w0", 2, 1.0)
    assert not report.notice.will_restart and kills == [Kill("frontend"), Kill("w1")]
    supervisor.exited("frontend", -9, 1.1)
    assert supervisor.exited("w1", 2, 1.2)[-1] == Finish(2, failed="w0"), "the first reason counts"


def test_a_failed_setup_later_costs_only_that_worker() -> None:
    supervisor = started()
    supervisor.exited("w0", -9, 1.0)
    supervisor.tick(2.0)
    (report,) = supervisor.exited("w0", 2, 3.0)
    assert not report.notice.will_restart and supervisor.phase is Phase.RUNNING


def test_the_first_signal_drains_frontend_first() -> None:
    supervisor = started()
    assert supervisor.terminate(1.0) == [Terminate("frontend")]
    assert supervisor.next_tick_s() == 36.0
    assert supervisor.exited("w0", -9, 2.0) == [notice("w0", 0, -9, 2.0, 0.0, will_restart=False)]
    assert supervisor.exited("frontend", 0, 3.0) == [Terminate("w1")]
    assert supervisor.exited("w1", 0, 4.0) == [notice("w1", 0, 0, 4.0, 0.0, will_restart=False), Finish(0)]
    assert supervisor.phase is Phase.OVER and supervisor.terminate(5.0) == [] and supervisor.next_tick_s() is None


def test_an_echo_of_a_signal_is_no_second_one() -> None:
    """timeout(1) signals its child and then the child's group: one wish, told twice within microseconds."""
    supervisor = started()
    assert supervisor.terminate(1.0) == [Terminate("frontend")]
    assert supervisor.terminate(1.0001) == [] and supervisor.phase is Phase.DRAINING
    assert supervisor.exited("frontend", 0, 1.01) == [Terminate("w0"), Terminate("w1")]
    assert supervisor.terminate(1.02) == [], "still an echo, in the next phase"
    assert supervisor.terminate(1.1) == [Kill("w0"), Kill("w1")]


def test_a_drain_that_lasts_too_long_is_ended_step_by_step() -> None:
    supervisor = started("w0")
    supervisor.terminate(0.0)
    assert supervisor.tick(34.9) == []
    assert supervisor.tick(35.0) == [Kill("frontend"), Terminate("w0")]
    supervisor.exited("frontend", -9, 35.1)
    assert supervisor.tick(40.0) == [Kill("w0")]
    assert supervisor.exited("w0", -9, 40.1)[-1] == Finish(0)


def test_a_second_signal_kills() -> None:
    supervisor = started()
    supervisor.terminate(1.0)
    assert supervisor.terminate(1.1) == [Kill("frontend"), Kill("w0"), Kill("w1")]
    assert supervisor.terminate(1.2) == []
    assert supervisor.tick(6.2) == [Kill("frontend"), Kill("w0"), Kill("w1")], "again, if they are still there"
    for name in ("frontend", "w0"):
        supervisor.exited(name, -9, 7.0)
    assert supervisor.exited("w1", -9, 7.0)[-1].exit_code == 1


def test_draining_without_a_frontend_goes_straight_to_the_workers() -> None:
    supervisor = started("w0")
    supervisor.exited("frontend", -9, 1.0)
    assert supervisor.terminate(1.05) == [Terminate("w0")]
    assert supervisor.tick(1.2) == [], "the restart that was due is off"
    supervisor = started("w0")
    supervisor.exited("w0", -9, 1.0)
    supervisor.exited("frontend", -9, 1.0)
    assert supervisor.terminate(1.05) == [Finish(0)], "nothing runs"


def test_unresponsive_kills_the_life_that_is_meant() -> None:
    supervisor = started()
    assert supervisor.unresponsive("w0", 0) == [Kill("w0")]
    assert supervisor.unresponsive("w0", 1) == supervisor.unresponsive("nobody", 0) == []
    supervisor.exited("w0", -9, 1.0)
    assert supervisor.unresponsive("w0", 0) == []


class World:
    """Carries out orders on processes that obey, and checks that each order makes sense."""

    def __init__(self) -> None:
        self.supervisor = Supervisor("frontend", ["w0", "w1"], CONFIG)
        self.running: dict[str, int] = {}
        self.lives: dict[str, int] = {}
        self.finish: Finish | None = None
        self.act(self.supervisor.start(0.0))

    def act(self, orders: list[Order]) -> None:
        for order in orders:
            assert self.finish is None, f"{order} after the end"
            match order:
                case Launch():
                    assert order.name not in self.running
                    assert order.incarnation == self.lives.get(order.name, -1) + 1, "each life counts one up"
                    self.running[order.name] = self.lives[order.name] = order.incarnation
                case Terminate() | Kill():
                    assert order.name in self.running
                case Report():
                    assert self.lives[order.notice.worker_id] == order.notice.incarnation
                case Finish():
                    assert not self.running, "the end comes last"
                    self.finish = order

    def end(self, name: str, exit_code: int, now_s: float) -> None:
        if name in self.running:
            del self.running[name]
            self.act(self.supervisor.exited(name, exit_code, now_s))


_events = st.one_of(
    st.tuples(st.just("end"), st.sampled_from(["frontend", "w0", "w1"]), st.sampled_from([0, 1, 2, -9])),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 1.0, 40.0]), st.just(0)),
    st.tuples(st.just("signal"), st.just(""), st.just(0)),
    st.tuples(st.just("silent"), st.sampled_from(["w0", "w1"]), st.integers(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_events, max_size=25))
def test_whatever_happens_orders_make_sense_and_signals_end_it(events: list) -> None:
    world, now_s = World(), 0.0
    for kind, what, number in events:
        if kind == "end":
            world.end(what, number, now_s)
        elif kind == "wait":
            now_s += what
            world.act(world.supervisor.tick(now_s))
        elif kind == "signal":
            world.act(world.supervisor.terminate(now_s))
        else:
            world.act(world.supervisor.unresponsive(what, number))
    for _ in range(2):
        world.act(world.supervisor.terminate(now_s))
    for name in list(world.running):
        world.end(name, -9, now_s)
    assert world.finish is not None and world.supervisor.phase is Phase.OVER
