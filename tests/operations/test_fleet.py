"""The fleet: who is a member, in which life and state, with which load."""

import pytest

from tests.operations.ops_fakes import make_card, make_exit, make_frame, make_hello, tokens
from tokenmill.core.wire import Hello
from tokenmill.operations.fleet import Fleet, FrameOrigin
from tokenmill.operations.members import MemberState


def ready_fleet(*worker_ids: str) -> Fleet:
    fleet = Fleet()
    for worker_id in worker_ids or ("w0",):
        fleet.hello(make_hello(worker_id), 0.0)
    return fleet


def test_an_expected_worker_is_known_before_it_speaks() -> None:
    fleet = Fleet()
    fleet.expect("w0", "m", 1.0)
    (view,) = fleet.members("m")
    assert (view.state, view.since_s, view.incarnation) == (MemberState.STARTING, 1.0, 0)
    assert fleet.models() == ["m"] and fleet.cards() == {} and fleet.can_return("m")
    assert fleet.ready("m").members == ()
    fleet.hello(make_hello(), 2.0)
    fleet.expect("w0", "m", 3.0)
    assert fleet.get("w0").state is MemberState.READY
    assert fleet.cards() == {"m": make_card()}


def test_ready_members_come_in_order_of_id_and_by_model() -> None:
    fleet = ready_fleet("w2", "w0", "w1")
    fleet.hello(make_hello("x0", model="other"), 0.0)
    assert [view.worker_id for view in fleet.ready("m").members] == ["w0", "w1", "w2"]
    assert [view.worker_id for view in fleet.members()] == ["w0", "w1", "w2", "x0"]
    assert fleet.models() == ["m", "other"]


def test_a_worker_may_come_back_with_another_model() -> None:
    fleet = ready_fleet()
    fleet.exited(make_exit(), 1.0)
    fleet.hello(make_hello(incarnation=1, model="other"), 2.0)
    assert fleet.models() == ["other"]


def test_restart_counts_up_and_keeps_the_card() -> None:
    fleet = ready_fleet()
    assert fleet.exited(make_exit(), 1.0)
    view = fleet.get("w0")
    assert (view.state, view.incarnation, view.is_expected_back) == (MemberState.STARTING, 1, True)
    assert fleet.cards() == {"m": make_card()}
    assert not fleet.exited(make_exit(), 1.5), "the same end twice"
    assert not fleet.hello(make_hello(incarnation=0), 1.6), "an old life"
    assert fleet.hello(make_hello(incarnation=1), 2.0)
    assert not fleet.hello(make_hello(incarnation=1), 2.1), "nothing new"


def test_end_without_restart_is_final_for_this_life() -> None:
    fleet = ready_fleet()
    assert fleet.exited(make_exit(will_restart=False), 1.0)
    view = fleet.get("w0")
    assert view.state is MemberState.LOST and not fleet.can_return("m") and "-9" in view.reason
    assert not fleet.hello(make_hello(), 2.0)
    assert not fleet.exited(make_exit(will_restart=False), 2.0)
    assert fleet.frame(make_frame(), 2.0) is FrameOrigin.STALE


def test_exit_of_an_unknown_worker_changes_nothing() -> None:
    fleet = Fleet()
    assert not fleet.exited(make_exit(), 1.0)
    assert fleet.members() == ()


@pytest.mark.parametrize(
    ("incarnation", "origin"), [(0, FrameOrigin.STALE), (1, FrameOrigin.CURRENT), (2, FrameOrigin.UNKNOWN)]
)
def test_frames_count_for_the_life_they_come_from(incarnation: int, origin: FrameOrigin) -> None:
    fleet = ready_fleet()
    fleet.hello(make_hello(incarnation=1), 0.5)
    assert fleet.frame(make_frame("w0", incarnation, num_running=3), 1.0) is origin
    assert fleet.get("w0").stats.num_running == (3 if origin is FrameOrigin.CURRENT else 0)


def test_a_worker_is_asked_once_to_introduce_itself() -> None:
    fleet = Fleet()
    assert fleet.frame(make_frame(), 1.0) is FrameOrigin.UNKNOWN
    assert fleet.should_introduce(make_frame(), 1.0)
    assert not fleet.should_introduce(make_frame(), 1.1)
    assert fleet.should_introduce(make_frame(), 3.0), "no answer: the question may be lost"
    assert fleet.should_introduce(make_frame("w0", 1), 3.0), "another life"
    fleet.hello(make_hello(incarnation=1), 2.0)
    fleet.give_up("w0", "silent", 3.0, is_expected_back=True)
    assert fleet.frame(make_frame("w0", 1), 4.0) is FrameOrigin.GIVEN_UP
    assert fleet.should_introduce(make_frame("w0", 1), 4.0)
    assert not fleet.should_introduce(make_frame("w0", 1), 4.1)
    assert fleet.hello(make_hello(incarnation=1), 5.0), "back in the same life"
    assert fleet.get("w0").state is MemberState.READY


def test_a_frame_before_hello_of_an_expected_worker_is_unknown() -> None:
    fleet = Fleet()
    fleet.expect("w0", "m", 0.0)
    assert fleet.frame(make_frame(), 1.0) is FrameOrigin.UNKNOWN


def test_load_is_what_the_worker_reports_plus_what_is_on_the_way() -> None:
    fleet = ready_fleet()
    for _ in range(3):
        fleet.given("w0", 10, 1.0)
    view = fleet.get("w0")
    assert (view.load, view.num_unseen, view.num_in_flight, view.num_pending_tokens) == (3, 3, 3, 30)
    fleet.frame(make_frame(num_received=2, num_running=1, num_waiting=1), 1.5)
    assert (fleet.get("w0").load, fleet.get("w0").num_unseen) == (3, 1)
    fleet.frame(make_frame(num_received=3, num_running=5), 2.0)
    assert fleet.get("w0").load == 5, "other frontends' requests count"
    fleet.first_token("w0", 10)
    fleet.ended("w0", 0)
    fleet.ended("w0", 10)
    view = fleet.get("w0")
    assert (view.num_in_flight, view.num_pending_tokens) == (1, 10)
    fleet.check_integrity()


def test_the_end_of_a_life_is_the_end_of_its_load() -> None:
    fleet = ready_fleet()
    fleet.given("w0", 10, 1.0)
    fleet.give_up("w0", "silent", 2.0, is_expected_back=True)
    assert fleet.get("w0").load == 0
    fleet.check_integrity()


def test_progress_needs_tokens_not_frames() -> None:
    """S62: a worker that answers and steps but never produces is not getting on."""
    fleet = ready_fleet()
    fleet.given("w0", 10, 1.0)
    fleet.frame(make_frame(num_waiting=1, steps_total=5), 9.0)
    assert (fleet.get("w0").progress_s, fleet.get("w0").last_seen_s) == (1.0, 9.0)
    fleet.frame(make_frame(num_running=1, prompt_tokens_total=16), 10.0)
    assert fleet.get("w0").progress_s == 10.0, "a prompt chunk is progress"
    fleet.frame(make_frame("w0", 0, tokens("r", 7), prompt_tokens_total=16), 11.0)
    assert fleet.get("w0").progress_s == 11.0


def test_work_after_rest_starts_the_progress_clock_anew() -> None:
    fleet = ready_fleet()
    fleet.given("w0", 1, 50.0)
    fleet.given("w0", 1, 60.0)
    assert fleet.get("w0").progress_s == 50.0


def test_draining_workers_get_nothing_new() -> None:
    fleet = ready_fleet("w0", "w1")
    fleet.drain("w0", 1.0)
    assert [view.worker_id for view in fleet.ready("m").members] == ["w1"]
    assert fleet.frame(make_frame(), 2.0) is FrameOrigin.CURRENT, "but what they still say counts"
    fleet.give_up("w1", "gone", 3.0, is_expected_back=False)
    fleet.drain("w1", 4.0)
    assert fleet.get("w1").state is MemberState.LOST


def test_silence_is_forgiven_when_we_slept_ourselves() -> None:
    fleet = ready_fleet()
    fleet.forgive_silence(5.0)
    view = fleet.get("w0")
    assert (view.last_seen_s, view.progress_s, view.since_s) == (5.0, 5.0, 5.0)


def test_hello_takes_the_name_from_the_card() -> None:
    fleet = Fleet()
    fleet.hello(Hello(worker_id="a", incarnation=4, pid=1, started_s=0.0, card=make_card("big")), 0.0)
    assert fleet.get("a").model == "big" and fleet.get("a").incarnation == 4
