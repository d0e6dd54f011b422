"""Admission: who may enter, and what the typed error says to who may not."""

import pytest

from tests.operations.ops_fakes import make_card, make_request
from tokenmill.core.errors import ModelNotFoundError, OverloadedError, UnavailableError
from tokenmill.operations.admission import ModelLoad, ModelSupply, admit
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.members import MemberState, MemberView


def member(state: MemberState = MemberState.READY, **changes: object) -> MemberView:
    fields: dict[str, object] = {
        "worker_id": "w0",
        "model": "m",
        "incarnation": 0,
        "state": state,
        "since_s": 0.0,
        "last_seen_s": 0.0,
        "progress_s": 0.0,
        "card": make_card(),
    }
    return MemberView(**(fields | changes))  # type: ignore[arg-type]


def try_admit(*members: MemberView, load: ModelLoad | None = None, draining: bool = False, **config: int) -> None:
    admit(
        make_request("r", num_tokens=10),
        ModelSupply.of(members),
        load or ModelLoad(),
        OperationsConfig(**config),  # type: ignore[arg-type]
        models=["m", "other"],
        is_draining=draining,
    )


def test_a_ready_worker_with_room_admits() -> None:
    try_admit(member())


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError, match=r"'m' is not served here; served: 'm', 'other'"):
        try_admit()


@pytest.mark.parametrize("state", [MemberState.STARTING, MemberState.DRAINING, MemberState.LOST])
def test_no_ready_worker_says_what_they_do(state: MemberState) -> None:
    with pytest.raises(UnavailableError, match="w0 not so well") as caught:
        try_admit(member(state, reason="not so well"))
    assert caught.value.retryable


def test_draining_refuses_all() -> None:
    with pytest.raises(UnavailableError, match="shutting down"):
        try_admit(member(), draining=True)


def test_queue_is_seats_of_ready_workers_plus_waiting_room() -> None:
    two = (member(), member(worker_id="w1"), member(MemberState.LOST, worker_id="w2"))
    try_admit(*two, load=ModelLoad(num_requests=9), max_queued_requests=2)
    with pytest.raises(OverloadedError, match=r"10 requests in flight; its 2 worker\(s\) run 8 at once and 2 may wait"):
        try_admit(*two, load=ModelLoad(num_requests=10), max_queued_requests=2)


def test_waiting_prompt_tokens_are_limited_but_one_request_always_fits() -> None:
    with pytest.raises(OverloadedError, match="95 prompt tokens waiting and this request adds 10; 100 may wait"):
        try_admit(member(), load=ModelLoad(2, 95), max_queued_tokens=100)
    try_admit(member(), load=ModelLoad(2, 90), max_queued_tokens=100)
    try_admit(member(), load=ModelLoad(0, 0), max_queued_tokens=5)
