"""The conductor: nothing sent twice or too early, loops hold their level, sub-agents before their parent goes on."""

import heapq
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.workloads.conductor import ClosedLoop, Conductor, Due, OpenLoop
from tokenmill.workloads.content import Segment
from tokenmill.workloads.library import load_workload
from tokenmill.workloads.sessions import Session, Turn, generate


def _session(name: str, num_turns: int = 1, gap_s: float = 0.0, **more) -> Session:
    turns = tuple(Turn((Segment(f"{name}{k}", 4),), 2, gap_s if k else 0.0) for k in range(num_turns))
    return Session(name, turns, **more)


def drive(conductor: Conductor, service_s: float = 1.0, fails=lambda due: False) -> list[tuple[float, Due, float]]:
    """Run to the end in virtual time; (sent, what, ended) in order of sending."""
    now, ends, log = 0.0, [], []
    while not conductor.is_done:
        for due in conductor.take_due(now):
            assert due.due_s <= now
            heapq.heappush(ends, (now + service_s, len(log), due))
            log.append((now, due, now + service_s))
        following = [t for t in (conductor.next_due_s(), ends[0][0] if ends else None) if t is not None]
        if not following:
            break
        now = max(now, min(following))
        while ends and ends[0][0] <= now:
            _, _, due = heapq.heappop(ends)
            conductor.ended(due.session.session_id, due.turn_index, now, is_ok=not fails(due))
    return log


def test_closed_loop_holds_its_level() -> None:
    log = drive(Conductor([_session(str(i)) for i in range(7)], ClosedLoop(3)))
    assert [sent for sent, _, _ in log] == [0, 0, 0, 1, 1, 1, 2]


def test_closed_loop_ramps_up() -> None:
    log = drive(Conductor([_session(str(i)) for i in range(4)], ClosedLoop(4, ramp_s=0.8)))
    assert [sent for sent, _, _ in log] == pytest.approx([0, 0.2, 0.4, 0.6])


def test_open_loop_waits_for_nobody_and_gaps_follow_answers() -> None:
    sessions = [_session("a", 3, gap_s=0.5), _session("b", 1)]
    log = drive(Conductor(sessions, OpenLoop([0.0, 0.1])), service_s=2.0)
    sent = [(due.session.session_id, due.turn_index, at) for at, due, _ in log]
    assert sent == [("a", 0, 0.0), ("b", 0, 0.1), ("a", 1, 2.5), ("a", 2, 5.0)]


def test_parent_waits_for_its_sub_agents() -> None:
    children = tuple(_session(f"c{i}", 2, parent_session_id="p", after_turn=0) for i in range(2))
    log = drive(Conductor([_session("p", 2, children=children)], ClosedLoop(1)))
    assert [(due.session.session_id, at) for at, due, _ in log] == [
        ("p", 0), ("c0", 1), ("c1", 1), ("c0", 2), ("c1", 2), ("p", 3),
    ]  # fmt: skip


def test_failed_turn_abandons_the_rest_and_counts_it() -> None:
    child = _session("c", 2, parent_session_id="p", after_turn=1)
    conductor = Conductor([_session("p", 4, children=(child,)), _session("q")], ClosedLoop(1))
    log = drive(conductor, fails=lambda due: due.session.session_id == "p" and due.turn_index == 1)
    assert [due.session.session_id for _, due, _ in log] == ["p", "p", "q"]
    assert conductor.num_abandoned_turns == 2 + 2


def test_failed_sub_agent_does_not_hang_its_parent() -> None:
    child = _session("c", 3, parent_session_id="p", after_turn=0)
    conductor = Conductor([_session("p", 2, children=(child,))], ClosedLoop(1))
    log = drive(conductor, fails=lambda due: due.session.session_id == "c")
    assert [due.session.session_id for _, due, _ in log] == ["p", "c", "p"] and conductor.num_abandoned_turns == 2


def test_limits_end_an_endless_source() -> None:
    def endless():
        return generate(load_workload("chat").scaled(0.1))

    assert len(drive(Conductor(endless(), ClosedLoop(3), max_turns=20))) == 20
    log = drive(Conductor(endless(), ClosedLoop(3), until_s=5.0))
    assert log and max(sent for sent, _, _ in log) < 5.0


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.01, 5))
def test_every_turn_is_sent_once_in_order(seed: int, concurrency: int, service_s: float) -> None:
    sessions = list(islice(generate(load_workload("agentic").scaled(0.004), seed=seed), 6))
    log = drive(Conductor(sessions, ClosedLoop(concurrency)), service_s)
    wanted = {(m.session_id, k) for s in sessions for m in s.family() for k in range(len(m.turns))}
    sent = [(due.session.session_id, due.turn_index) for _, due, _ in log]
    assert len(sent) == len(wanted) and set(sent) == wanted
    ended = {(due.session.session_id, due.turn_index): end for _, due, end in log}
    for at, due, _ in log:
        if due.turn_index:
            assert at >= ended[due.session.session_id, due.turn_index - 1] + due.turn.gap_s - 1e-9
