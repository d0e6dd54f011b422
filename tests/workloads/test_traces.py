"""Traces: what we write comes back the same, Mooncake and AIPerf lines mean what they say, broken lines are named."""

import json
from itertools import islice
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.workloads import content
from tokenmill.workloads.library import load_workload
from tokenmill.workloads.sessions import Session, generate
from tokenmill.workloads.trace import TraceWriter, read_trace


def _write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def _lengths(session: Session) -> list[tuple[int, int]]:
    return [(turn.num_prompt_tokens, turn.num_output_tokens) for turn in session.turns]


def test_mooncake_lines_share_the_blocks_that_share_an_id(tmp_path) -> None:
    one = {"timestamp": 1000, "input_length": 1100, "output_length": 20, "hash_ids": [4, 5, 6]}
    two = {"timestamp": 3000, "input_length": 1500, "output_length": 30, "hash_ids": [4, 5, 7]}
    first, second = read_trace(_write(tmp_path / "t.jsonl", two, one), run="r")
    assert (first.arrival_s, second.arrival_s) == (0.0, 2.0)
    a, b = (content.token_ids(session.turns[0].prompt, 9000) for session in (first, second))
    assert (len(a), len(b)) == (1100, 1500)
    assert a[:1024] == b[:1024] and a[1024:1100] != b[1024:1100]
    (faster, _) = read_trace(tmp_path / "t.jsonl", run="r", speed=4)[::-1]
    assert faster.arrival_s == 0.5


def test_aiperf_sessions_add_to_their_conversation(tmp_path) -> None:
    lines = [
        {"session_id": "a", "input_length": 100, "output_length": 10},
        {"session_id": "b", "input_length": 50, "output_length": 5},
        {"session_id": "a", "input_length": 20, "output_length": 10, "delay": 250},
    ]
    sessions = read_trace(_write(tmp_path / "t.jsonl", *lines))
    a = next(session for session in sessions if len(session.turns) == 2)
    assert _lengths(a) == [(100, 10), (130, 10)] and a.turns[1].gap_s == 0.25
    assert a.turns[1].prompt[1].reply_turn == 0
    single = read_trace(tmp_path / "t.jsonl", keeps_sessions=False)
    assert [_lengths(session) for session in single] == [[(100, 10)], [(50, 5)], [(20, 10)]]


def test_what_a_run_wrote_is_replayed_with_sessions_and_sub_agents(tmp_path) -> None:
    workload = load_workload("agentic").scaled(0.05)
    session = next(s for s in generate(workload, seed=3) if s.children)
    writer = TraceWriter()
    lines = [
        writer.line(member, index, 0.5 * index) for member in session.family() for index in range(len(member.turns))
    ]
    (again,) = read_trace(_write(tmp_path / "t.jsonl", *lines), run="again")
    assert _lengths(again) == _lengths(session)
    assert [_lengths(child) for child in again.children] == [_lengths(child) for child in session.children]
    assert [child.after_turn for child in again.children] == [child.after_turn for child in session.children]
    for before, after in zip(again.turns, again.turns[1:], strict=False):  # whole prompts still share their blocks
        shared = before.num_prompt_tokens // 512 * 512
        assert content.token_ids(before.prompt, 999)[:shared] == content.token_ids(after.prompt, 999)[:shared]
    assert [turn.gap_s for turn in again.turns] == pytest.approx([turn.gap_s for turn in session.turns], abs=1e-3)


def test_hash_ids_are_equal_where_prompts_are(tmp_path) -> None:
    workload = load_workload("rag-shared-prefix")
    writer, seen = TraceWriter(), {}
    for session in islice(generate(workload), 30):
        line = json.loads(writer.line(session, 0, 0.0))
        ids = content.token_ids(session.turns[0].prompt, 50_000)
        assert len(line["hash_ids"]) == -(-len(ids) // 512) and line["input_length"] == len(ids)
        for index, hash_id in enumerate(line["hash_ids"]):
            block = tuple(ids[: (index + 1) * 512])
            assert seen.setdefault(hash_id, block) == block
    assert len(set(seen.values())) == len(seen)


def test_broken_lines_are_named_by_number_and_fault(tmp_path) -> None:
    path = _write(
        tmp_path / "t.jsonl",
        {"timestamp": 0, "input_length": 10, "output_length": 5},
        '{"timestamp": 0, "input_length"',
        "",
        {"input_length": 10},
        {"input_length": -3, "output_length": 5},
        {"input_length": 10, "output_length": 5, "hash_ids": [1, 2]},
        {"input_length": 10, "output_length": 5, "timestamp": "soon"},
        [1],
        {"text_input": "hi", "output_length": 5},
    )
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "line 2: not JSON" in message and "line 4: output_length is missing" in message
    assert "line 5: input_length is -3" in message and "line 6: 2 hash_ids for input_length 10" in message
    assert "line 7: timestamp is 'soon'" in message and "and 2 more" in message


def test_empty_and_absent_traces_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"holds no request"):
        read_trace(_write(tmp_path / "t.jsonl"))
    with pytest.raises(ConfigError, match=r"cannot be read"):
        read_trace(tmp_path / "none.jsonl")
