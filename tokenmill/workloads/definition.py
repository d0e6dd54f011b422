"""What a workload is: lengths, sharing, sessions, sub-agents, load and cache size, as a frozen value.

Not responsible for: reading files (library), making sessions of it (sessions), when they start (arrivals).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tokenmill.core.slo import SLO
from tokenmill.workloads.lengths import NONE, ONE, Lengths

Scales = Literal["tokens", "counts", "gaps"]


@dataclass(frozen=True, slots=True)
class SubAgents:
    """Conversations that a session starts at one of its turns and waits for before its next one.

    share          of the sessions that start any
    num_agents     how many, when it does
    shared_tokens  the prefix that all sub-agents of all sessions have in common (their own instructions)
    brief_tokens   what the parent tells them: the same for all agents of one session
    model          which of the workload's models answers them (0: the lead's)
    turns          of each agent, unless num_tasks says how many tasks are dealt out to all agents of a session:
                   each task is then one turn
    """

    share: float
    num_agents: Lengths
    shared_tokens: int
    brief_tokens: Lengths
    turns: Lengths
    turn_tokens: Lengths
    output_tokens: Lengths
    gap_s: Lengths
    model: int = 0
    num_tasks: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How it is offered when the caller does not say: so many sessions at once, or so many started per second."""

    concurrency: int | None = None
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """
    digest         hash of the definition as written; stored in every result
    num_models     models a deployment needs for it (roles 0, 1, …)
    num_prefixes   shared prefixes (system prompts, documents); each session draws one
    prefix_skew    0: all prefixes are as likely; 1: the n-th is drawn in proportion to 1/n
    prefix_tokens  length of a shared prefix; 0: nothing is shared
    first_tokens   the first message, on top of the prefix
    turns          turns of a session
    turn_tokens    what each later turn adds (a tool's result, the user's next message)
    output_tokens  length of an answer
    gap_s          seconds between an answer and the session's next turn (tool, thinking)
    kv_pool_share  size of the KV pool as a share of the working set (see sizes.working_set_tokens)
    scales         what the factor of `scaled` touches
    """

    name: str
    version: int
    digest: str
    description: str
    prefix_tokens: Lengths
    first_tokens: Lengths
    output_tokens: Lengths
    turns: Lengths = ONE
    turn_tokens: Lengths = NONE
    gap_s: Lengths = NONE
    num_models: int = 1
    num_prefixes: int = 1
    prefix_skew: float = 0.0
    sub_agents: SubAgents | None = None
    load: Load = Load(concurrency=8)
    kv_pool_share: float = 1.0
    slo: SLO | None = None
    scales: tuple[Scales, ...] = ("tokens",)
    scale: float = 1.0

    def scaled(self, factor: float) -> Workload:
        """The same shape for a machine `factor` times as large; the factor is kept beside the digest."""
        assert factor > 0, f"{factor=}"
        tokens = factor if "tokens" in self.scales else 1.0
        counts = factor if "counts" in self.scales else 1.0
        gaps = factor if "gaps" in self.scales else 1.0
        return replace(
            self,
            prefix_tokens=self.prefix_tokens.scaled(tokens),
            first_tokens=self.first_tokens.scaled(tokens),
            turn_tokens=self.turn_tokens.scaled(tokens),
            output_tokens=self.output_tokens.scaled(tokens),
            gap_s=self.gap_s.scaled(gaps),
            sub_agents=self.sub_agents and _scaled_agents(self.sub_agents, tokens, counts, gaps),
            scale=self.scale * factor,
        )


def _scaled_agents(agents: SubAgents, tokens: float, counts: float, gaps: float) -> SubAgents:
    return replace(
        agents,
        num_agents=agents.num_agents.scaled(counts),
        num_tasks=agents.num_tasks and max(1, round(agents.num_tasks * counts)),
        shared_tokens=round(agents.shared_tokens * tokens),
        brief_tokens=agents.brief_tokens.scaled(tokens),
        turn_tokens=agents.turn_tokens.scaled(tokens),
        output_tokens=agents.output_tokens.scaled(tokens),
        gap_s=agents.gap_s.scaled(gaps),
    )
