"""Every message survives its way over the wire, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tokenmill.core import wire
from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVEvents, KVFormat, KVSnapshot
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, SamplingParams, TokenDelta

CARD = ModelCard(
    name="m",
    architecture="llama",
    max_model_len=4096,
    kv_capacity_tokens=8192,
    max_num_seqs=64,
    vocab_size=256,
    block_size=16,
    weights_version="abc",
    tokenizer_path="/models/m",
    eos_token_ids=(2, 3),
)
GROUPS = [CacheGroup("full", GroupKind.FULL, 64), CacheGroup("window", GroupKind.SLIDING_WINDOW, 64, window_tokens=128)]
DELTAS = (
    TokenDelta(request_id="a", token_ids=(1, 2), num_cached_tokens=16, seconds=0.25),
    TokenDelta(request_id="b", finish_reason=FinishReason.ERROR, error=("worker_lost", "gone")),
)
STATS = wire.WorkerStats(num_running=2, num_waiting=1, kv_usage=0.5, prompt_tokens_total=100, steps_total=7)
REQUEST = Request(request_id="a", model="m", prompt_token_ids=[1, 2, 3], sampling=SamplingParams(seed=1))

EXAMPLES: dict[Any, list[Any]] = {
    wire.ToWorker: [wire.Generate(REQUEST), wire.Abort("a"), wire.Drain(), wire.Introduce(), wire.ReportCache()],
    wire.ToSupervisor: [wire.Unresponsive(worker_id="w", incarnation=1, reason="silent for 30 s")],
    wire.ToFrontend: [
        wire.Hello(worker_id="w", incarnation=0, pid=7, started_s=1.5, card=CARD),
        wire.StepFrame(worker_id="w", incarnation=0, until_s=3.0),
        wire.StepFrame(
            worker_id="w",
            incarnation=3,
            until_s=3.0,
            busy_s=0.5,
            idle_s=0.25,
            startup_s=0.125,
            unattributed_s=0.25,
            joules=12.5,
            deltas=DELTAS,
            stats=STATS,
        ),
        wire.Goodbye(worker_id="w", incarnation=0),
        wire.WorkerExited(worker_id="w", incarnation=0, exit_code=-9, at_s=4.0, will_restart=True),
        KVEvents(
            worker_id="w",
            incarnation=0,
            number=2,
            changes=(BlocksStored(0, [b"a" * 16]), BlocksRemoved(1, [b"b" * 16]), CacheCleared()),
        ),
        KVSnapshot(worker_id="w", incarnation=0, number=2, format=KVFormat.of(CARD, GROUPS), hashes=([b"a" * 16], [])),
    ],
}
DECODE = {
    wire.ToWorker: wire.decode_to_worker,
    wire.ToSupervisor: wire.decode_to_supervisor,
    wire.ToFrontend: wire.decode_to_frontend,
}
CASES = [(union, message) for union, messages in EXAMPLES.items() for message in messages]


def members(union: Any) -> tuple[type, ...]:
    return get_args(union) or (union,)


@pytest.mark.parametrize(("union", "message"), CASES, ids=lambda x: type(x).__name__)
def test_round_trip(union: Any, message: Any) -> None:
    back = DECODE[union](wire.encode(message))
    assert type(back) is type(message)
    assert back == message


@pytest.mark.parametrize("union", EXAMPLES, ids=str)
def test_every_message_of_a_direction_has_an_example(union: Any) -> None:
    assert {type(m) for m in EXAMPLES[union]} == set(members(union))


def test_tags_are_unique_within_a_direction() -> None:
    for union in EXAMPLES:
        tags = [cls.__struct_config__.tag for cls in members(union)]  # type: ignore[attr-defined]
        assert len(tags) == len(set(tags))


def test_times_keep_every_bit() -> None:
    """The ledger sums these; a float32 on the way would unbalance the bill."""
    frame = wire.StepFrame(worker_id="w", incarnation=0, until_s=1e9 + 0.1, busy_s=0.1)
    back = wire.decode_to_frontend(wire.encode(frame))
    assert isinstance(back, wire.StepFrame)
    assert (back.until_s, back.busy_s) == (frame.until_s, frame.busy_s)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"type": "nonsense"}), b"\x93\x01"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_to_frontend(data)
    with pytest.raises(msgspec.DecodeError):
        wire.decode_to_worker(data)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.decode_to_worker(wire.encode(wire.Goodbye(worker_id="w", incarnation=0)))
