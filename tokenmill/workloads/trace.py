"""Traces: reads Mooncake's JSONL and AIPerf's multi-turn form of it as sessions; writes what a run sent. Pure.

Mooncake line: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [ids of blocks of 512 tokens]}.
AIPerf adds "session_id" and "delay" (ms after the answer before); there a later turn's input_length is what it adds.
We add "session", "turn", "gap_ms", "parent_session", "after_turn", "model_role" beside whole prompts, so that our own
traces come back as sessions and sub-agents while other tools read them as plain Mooncake lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.workloads.content import Segment
from tokenmill.workloads.sessions import Session, Turn

BLOCK_TOKENS = 512
_NUM_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Line:
    """One request of a trace; `id_key` says how its prompt is meant."""

    number: int
    timestamp_s: float | None
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None
    session_id: str | None
    delay_s: float
    own: Mapping[str, Any]


def read_trace(path: Path, *, run: str = "run", speed: float = 1.0, keeps_sessions: bool = True) -> list[Session]:
    """Sessions in order of arrival. ConfigError names the broken lines by number and fault.

    run             other run, other tokens; equal hash ids are equal tokens within one
    speed           2: timestamps and delays are halved
    keeps_sessions  False: every line at its own timestamp, whatever has come back
    """
    lines = _lines(path)
    if not lines:
        raise ConfigError(f"trace {str(path)!r} holds no request: it must have one JSON object per line")
    origin_s = min((line.timestamp_s for line in lines if line.timestamp_s is not None), default=0.0)
    groups: dict[str, list[_Line]] = {}
    for line in lines:
        name = line.session_id or line.own.get("session")
        groups.setdefault(str(name) if name is not None and keeps_sessions else f"line {line.number}", []).append(line)
    sessions = [_session(f"{run}/{name}", run, group, origin_s, speed) for name, group in groups.items()]
    return sorted(_nested(sessions, lines, run, keeps_sessions), key=lambda session: session.arrival_s or 0.0)


def _lines(path: Path) -> list[_Line]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {str(path)!r} cannot be read: {error}") from None
    lines, faults = [], []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            lines.append(_parse(number, text))
        except ValueError as error:
            faults.append(f"line {number}: {error}")
    if faults:
        more = f" and {len(faults) - _NUM_SHOWN} more" if len(faults) > _NUM_SHOWN else ""
        raise ConfigError(f"trace {str(path)!r} has broken lines: {'; '.join(faults[:_NUM_SHOWN])}{more}")
    return lines


def _parse(number: int, text: str) -> _Line:
    """ValueError says what is wrong with the line."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"not an object but {type(value).__name__}")
    if "input_length" not in value and {"text_input", "messages", "payload"} & set(value):
        raise ValueError("requests with literal text are not replayed: give input_length")
    input_length, output_length = _whole(value, "input_length"), _whole(value, "output_length")
    hash_ids = value.get("hash_ids")
    if hash_ids is not None:
        if not isinstance(hash_ids, list) or not all(isinstance(item, int) for item in hash_ids):
            raise ValueError("hash_ids must be a list of whole numbers")
        if (needed := -(-input_length // BLOCK_TOKENS)) < len(hash_ids):
            raise ValueError(
                f"{len(hash_ids)} hash_ids for input_length {input_length}: at most {needed} blocks of 512"
            )
    return _Line(
        number,
        _seconds(value, "timestamp"),
        input_length,
        output_length,
        None if hash_ids is None else tuple(hash_ids),
        None if value.get("session_id") is None else str(value["session_id"]),
        _seconds(value, "delay") or _seconds(value, "gap_ms") or 0.0,
        value,
    )


def _whole(value: Mapping[str, Any], name: str) -> int:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != int(number) or number < 1:
        raise ValueError(f"{name} is {'missing' if number is None else repr(number)}, a whole number from 1 is needed")
    return int(number)


def _seconds(value: Mapping[str, Any], name: str) -> float | None:
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < float("inf"):
        raise ValueError(f"{name} is {number!r}, milliseconds from 0 are needed")
    return number / 1e3


def _session(session_id: str, run: str, lines: Sequence[_Line], origin_s: float, speed: float) -> Session:
    turns: list[Turn] = []
    for index, line in enumerate(lines):
        prompt = _prompt(line, session_id, run, index)
        if index and line.session_id is not None and line.hash_ids is None:  # AIPerf: the turn adds to the conversation
            before = turns[-1]
            answer = Segment(f"{session_id}/a{index - 1}", before.num_output_tokens, reply_turn=index - 1)
            prompt = (*before.prompt, answer, *prompt)
        turns.append(Turn(prompt, line.output_length, line.delay_s / speed if index else 0.0))
    arrival_s = (lines[0].timestamp_s if lines[0].timestamp_s is not None else origin_s) - origin_s
    role = lines[0].own.get("model_role", 0)
    return Session(session_id, tuple(turns), int(role), arrival_s=arrival_s / speed)


def _prompt(line: _Line, session_id: str, run: str, index: int) -> tuple[Segment, ...]:
    """Blocks by their hash id; what they do not cover belongs to this line alone."""
    left, segments = line.input_length, []
    for hash_id in line.hash_ids or ():
        segments.append(Segment(f"{run}/h{hash_id}", min(left, BLOCK_TOKENS)))
        left -= segments[-1].num_tokens
    if left:
        segments.append(Segment(f"{session_id}/t{index}", left))
    return tuple(segments)


def _nested(sessions: Sequence[Session], lines: Iterable[_Line], run: str, keeps_sessions: bool) -> Iterator[Session]:
    """Sub-agents under their parents, as our own traces name them."""
    parents = {
        f"{run}/{line.own['session']}": (f"{run}/{line.own['parent_session']}", int(line.own.get("after_turn", 0)))
        for line in lines
        if keeps_sessions and "session" in line.own and line.own.get("parent_session") is not None
    }
    known = {session.session_id for session in sessions}
    children: dict[str, list[Session]] = {}
    for session in sessions:
        parent_id, after_turn = parents.get(session.session_id, (None, 0))
        if parent_id in known and parent_id is not None:
            child = replace(session, parent_session_id=parent_id, after_turn=after_turn)
            children.setdefault(parent_id, []).append(child)

    def whole(session: Session) -> Session:
        return replace(session, children=tuple(whole(child) for child in children.get(session.session_id, ())))

    for session in sessions:
        if parents.get(session.session_id, (None, 0))[0] not in known:
            yield whole(session)


@dataclass(slots=True)
class TraceWriter:
    """Turns as lines, in the order they were sent; equal blocks of 512 tokens get equal hash ids."""

    _ids: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def line(self, session: Session, turn_index: int, sent_s: float) -> str:
        """One JSON line; `sent_s` since the start of the run."""
        turn = session.turns[turn_index]
        value: dict[str, Any] = {
            "timestamp": round(sent_s * 1e3, 3),
            "input_length": turn.num_prompt_tokens,
            "output_length": turn.num_output_tokens,
            "hash_ids": self._hash_ids(turn.prompt),
            "session": self._name(session.session_id),
            "turn": turn_index,
            "gap_ms": round(turn.gap_s * 1e3, 3),
        }
        if session.model:
            value["model_role"] = session.model
        if session.parent_session_id is not None:
            value["parent_session"] = self._name(session.parent_session_id)
            value["after_turn"] = session.after_turn
        return json.dumps(value)

    def _name(self, session_id: str) -> str:
        return self._names.setdefault(session_id, f"s{len(self._names)}")

    def _hash_ids(self, prompt: Sequence[Segment]) -> list[int]:
        """Chained: a block's id stands for everything up to its end."""
        ids: list[int] = []
        for pieces in _blocks(prompt):
            key = (ids[-1] if ids else None, *pieces)
            ids.append(self._ids.setdefault(key, len(self._ids)))
        return ids


def _blocks(prompt: Sequence[Segment]) -> Iterator[tuple[tuple[str, int, int], ...]]:
    """The (key, first, last) pieces that fill each block; the last block may be short."""
    pieces: list[tuple[str, int, int]] = []
    room = BLOCK_TOKENS
    for segment in prompt:
        start = 0
        while start < segment.num_tokens:
            taken = min(room, segment.num_tokens - start)
            pieces.append((segment.key, start, start + taken))
            start, room = start + taken, room - taken
            if not room:
                yield tuple(pieces)
                pieces, room = [], BLOCK_TOKENS
    if pieces:
        yield tuple(pieces)
