"""Sessions as data: the interface that load generation over HTTP and the twin share. Pure; same seed, same sessions.

    workload = load_workload("agentic").scaled(0.1)          # library.py: built-in name or path of a YAML file
    for session in generate(workload, seed=0, run="cell-1"):  # endless and lazy: take as many as you need
        for turn in session.turns:
            content.token_ids(turn.prompt, vocab_size)        # prompt ids (hashable by core.kv_hashes), or content.text
            turn.num_output_tokens, turn.gap_s                # what to ask for; seconds after the previous answer
        session.children                                      # sub-agents: sessions that start after a turn of this one

`conductor.Conductor` is the state machine that says which turn is due when, for closed and open loop, with gaps and
sub-agents: give it sessions and times, tell it what ended. `trace.read_trace` makes the same sessions of trace files.
`run` names one run or sweep cell: other run, other tokens (nothing is shared between two runs, everything within one).
Not responsible for: tokens of a prompt (content), starting times (arrivals, conductor).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from tokenmill.workloads.content import Segment, num_tokens
from tokenmill.workloads.definition import SubAgents, Workload


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: the whole prompt, answers to earlier turns included."""

    prompt: tuple[Segment, ...]
    num_output_tokens: int
    gap_s: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        """As asked for: an answer that came out shorter or longer changes what is really sent."""
        return num_tokens(self.prompt)


@dataclass(frozen=True, slots=True)
class Session:
    """
    turns        in order; each waits for the answer to the one before
    model        role of the model that answers (0, 1, … below the workload's num_models)
    children     sub-agents of this session
    after_turn   of a child: it starts when this turn of its parent has ended, and the parent's next turn waits for it
    arrival_s    from a trace: when it starts; None: the load says
    """

    session_id: str
    turns: tuple[Turn, ...]
    model: int = 0
    parent_session_id: str | None = None
    children: tuple[Session, ...] = field(default=())
    after_turn: int = 0
    arrival_s: float | None = None

    def family(self) -> Iterator[Session]:
        """This session and every sub-agent below it."""
        yield self
        for child in self.children:
            yield from child.family()


def generate(workload: Workload, *, seed: int = 0, run: str = "run") -> Iterator[Session]:
    """Endless; the n-th session depends on (definition, seed, run, n) alone."""
    prefixes = _Prefixes(workload, f"{run}/{seed}", seed)
    for index in count():
        rng = random.Random(f"{seed}/{workload.name}/{index}")  # lengths are the same in every run
        yield _session(workload, prefixes, rng, f"{run}/{seed}", index)


class _Prefixes:
    """The shared fronts: their lengths are drawn once per seed."""

    def __init__(self, workload: Workload, root: str, seed: int) -> None:
        rng = random.Random(f"{seed}/{workload.name}/prefixes")
        self._segments = [
            Segment(f"{root}/prefix{i}", _tokens(workload.prefix_tokens.draw(rng), 0))
            for i in range(workload.num_prefixes)
        ]
        self._weights = [1 / (i + 1) ** workload.prefix_skew for i in range(workload.num_prefixes)]

    def draw(self, rng: random.Random) -> tuple[Segment, ...]:
        (segment,) = rng.choices(self._segments, self._weights)
        return (segment,) if segment.num_tokens else ()


def _session(workload: Workload, prefixes: _Prefixes, rng: random.Random, root: str, index: int) -> Session:
    session_id = f"{root}/s{index}"
    num_turns = max(1, round(workload.turns.draw(rng)))
    agents = workload.sub_agents
    has_agents = agents is not None and rng.random() < agents.share
    if has_agents:
        num_turns = max(2, num_turns)  # one to send them, one to hear them
    front = prefixes.draw(rng)
    first = Segment(f"{session_id}/t0", _tokens(workload.first_tokens.draw(rng)))
    turns = _turns(rng, session_id, (*front, first), num_turns, workload)
    children: tuple[Session, ...] = ()
    if has_agents and agents is not None:
        children = _children(agents, rng, root, session_id, rng.randrange(num_turns - 1))
    return Session(session_id, turns, children=children)


def _children(agents: SubAgents, rng: random.Random, root: str, parent_id: str, after_turn: int) -> tuple[Session, ...]:
    num_agents = max(1, round(agents.num_agents.draw(rng)))
    front: tuple[Segment, ...] = (Segment(f"{root}/agents", agents.shared_tokens),) if agents.shared_tokens else ()
    brief = Segment(f"{parent_id}/brief{after_turn}", _tokens(agents.brief_tokens.draw(rng), 0))
    if brief.num_tokens:
        front = (*front, brief)
    children = []
    for index in range(num_agents):
        num_turns = _dealt(agents, index, num_agents) or max(1, round(agents.turns.draw(rng)))
        child_id = f"{parent_id}.{index}"
        first = Segment(f"{child_id}/t0", _tokens(agents.turn_tokens.draw(rng)))
        turns = _turns(rng, child_id, (*front, first), num_turns, agents)
        children.append(Session(child_id, turns, agents.model, parent_id, after_turn=after_turn))
    return tuple(children)


def _dealt(agents: SubAgents, index: int, num_agents: int) -> int | None:
    """How many of the tasks fall to this agent, at least one; None: tasks are not counted."""
    if agents.num_tasks is None:
        return None
    return max(1, agents.num_tasks // num_agents + (index < agents.num_tasks % num_agents))


def _turns(
    rng: random.Random, session_id: str, prompt: tuple[Segment, ...], num_turns: int, source: Workload | SubAgents
) -> tuple[Turn, ...]:
    """Turn k's prompt is turn k-1's, its answer and something new."""
    turns: list[Turn] = []
    for index in range(num_turns):
        num_output = _tokens(source.output_tokens.draw(rng))
        turns.append(Turn(prompt, num_output, source.gap_s.draw(rng) if index else 0.0))
        answer = Segment(f"{session_id}/a{index}", num_output, reply_turn=index)
        added = Segment(f"{session_id}/t{index + 1}", _tokens(source.turn_tokens.draw(rng)))
        prompt = (*prompt, answer, added)
    return tuple(turns)


def _tokens(drawn: float, least: int = 1) -> int:
    return max(least, round(drawn))
