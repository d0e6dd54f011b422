"""The steady part of a run, and the laws that every report is held to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.workloads.conductor import ClosedLoop, Conductor
from tokenmill.workloads.content import Segment
from tokenmill.workloads.invariants import broken_invariants
from tokenmill.workloads.request_metrics import summarise
from tokenmill.workloads.request_record import RequestRecord, with_checked_clock
from tokenmill.workloads.sessions import Session, Turn
from tokenmill.workloads.steady import steady_report, steady_window


def _record(sent_s: float, ttft_s: float, tpot_s: float, num: int, **more) -> RequestRecord:
    chunks = tuple(sent_s + ttft_s + tpot_s * i for i in range(num))
    return RequestRecord(sent_s, chunks[-1], chunks, 100, 0, num, "length", **more)


def _closed_loop(num: int, concurrency: int, ttft_s: float, tpot_s: float, num_tokens: int) -> list[RequestRecord]:
    """What a server of constant speed gives a closed loop."""
    sessions = [Session(str(i), (Turn((Segment(str(i), 100),), num_tokens),)) for i in range(num)]
    conductor, now, live, records = Conductor(sessions, ClosedLoop(concurrency)), 0.0, [], []
    while not conductor.is_done:
        for due in conductor.take_due(now):
            live.append((_record(now, ttft_s + 0.01 * len(records), tpot_s, num_tokens), due))
        live.sort(key=lambda item: item[0].end_s)
        record, due = live.pop(0)
        now = record.end_s
        records.append(record)
        conductor.ended(due.session.session_id, due.turn_index, now, is_ok=True)
    return records


def _counted(records: list[RequestRecord]) -> float:
    """Time-average in flight, by walking over the events."""
    events = sorted([(r.sent_s, 1) for r in records] + [(r.end_s, -1) for r in records])
    area, number, last = 0.0, 0, events[0][0]
    for at, change in events:
        area, number, last = area + number * (at - last), number + change, at
    return area / (events[-1][0] - events[0][0])


def test_window_leaves_out_first_wave_and_tail() -> None:
    records = _closed_loop(40, 4, 0.1, 0.02, 20)
    window = steady_window(records, 4)
    assert window is not None
    assert window.begin_s >= min(r.end_s for r in records)
    assert window.end_s <= sorted(r.end_s for r in records)[-4] + 1e-9
    report = steady_report(records, 4)
    assert report is not None and 3.6 <= report["num_in_flight_mean"] <= 4.0 + 1e-9
    inside = sum(1 for r in records for t in r.chunk_s if window.begin_s <= t < window.end_s)
    assert report["num_output_tokens"] == pytest.approx(inside)
    assert report["output_tput_per_s"] == pytest.approx(inside / window.duration_s)


def test_no_window_where_the_level_was_never_reached() -> None:
    assert steady_window(_closed_loop(2, 2, 0.1, 0.02, 5), 8) is None
    assert steady_window([], 4) is None
    assert steady_report([_record(0, 0.1, 0.1, 3)], None) is None  # one request is no steady state


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 2), st.floats(0, 0.5), st.integers(1, 30)), min_size=1))
def test_laws_hold_for_whatever_was_observed(rows: list[tuple[float, float, float, int]]) -> None:
    records = [_record(*row) for row in rows]
    report = summarise(records, None)
    assert broken_invariants(report, records, _counted(records) if report["duration_s"] else None, 0.0) == []


def test_failed_requests_keep_the_sums() -> None:
    records = [_record(0, 0.1, 0.1, 3), RequestRecord(0, 1, error="x"), RequestRecord(0, 1, error="y")]
    assert broken_invariants(summarise(records, None), records, _counted(records)) == []


def test_each_law_is_really_checked() -> None:
    records = [_record(0, 0.1, 0.1, 11), _record(0.5, 0.1, 0.1, 11)]
    report = summarise(records, None)
    assert broken_invariants(report, records, 2 * _counted(records), slack_s=0)[0].startswith("Little's law")
    for change, law in (
        ({"num_ok": 3}, "num_ok + num_failed"),
        ({"num_total_tokens": 7}, "input + output"),
        ({"output_tput_per_s": 9.0}, "output throughput"),
        ({"num_uncached_input_tokens": 1000}, "uncached"),
        ({"errors": {"x": 1}}, "errors add up"),
        ({"num_good_tokens": 99}, "good tokens"),
    ):
        assert any(law in broken for broken in broken_invariants(report | change, records, None)), law
    wrong = RequestRecord(0, 3, (1.0, 2.0), 10, 20, 2)
    assert "20 cached of 10 prompt tokens" in broken_invariants(summarise([wrong], None), [wrong], None)[-1]


def test_clock_that_runs_backwards_makes_a_failure_not_a_latency() -> None:
    """A negative TTFT was once reported by another tool."""
    record = with_checked_clock(RequestRecord(10.0, 12.0, (9.0, 11.0), 10, 0, 2, "stop"))
    assert record.error == "the client's clock went backwards" and record.ttft_s is None
    assert record.end_s >= record.sent_s
    fine = RequestRecord(10.0, 12.0, (11.0, 11.0), 10, 0, 2, "stop")
    assert with_checked_clock(fine) is fine


def test_records_survive_their_line() -> None:
    record = _record(1.0, 0.5, 0.1, 3, session_id="s", isl=100, due_s=0.5)
    assert RequestRecord.from_dict(record.to_dict()) == record
    assert record.late_s == 0.5 and record.to_dict()["ttft_s"] == 0.5
