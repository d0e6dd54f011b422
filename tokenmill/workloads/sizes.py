"""How large a workload is: contexts, tokens of a session, working set, KV pool. Arithmetic on generated sessions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from tokenmill.workloads.definition import Workload
from tokenmill.workloads.sessions import Session, Turn, generate

_NUM_SAMPLED = 64


def working_set_tokens(sessions: Sequence[Session]) -> int:
    """Distinct tokens whose KV these sessions would reuse if all were alive at once, each at its longest context."""
    longest: dict[str, int] = {}
    for session in (member for top in sessions for member in top.family()):
        turn = session.turns[-1]
        for segment in turn.prompt:
            longest[segment.key] = max(longest.get(segment.key, 0), segment.num_tokens)
        longest[f"{session.session_id}/last"] = turn.num_output_tokens
    return sum(longest.values())


def kv_pool_tokens(workload: Workload, *, concurrency: int, seed: int = 0) -> int:
    """Tokens that the KV pool should hold for `concurrency` live sessions: kv_pool_share x working set.

    Never below the longest single context, which could not run at all.
    """
    sessions = list(islice(generate(workload, seed=seed), concurrency))
    share = round(workload.kv_pool_share * working_set_tokens(sessions))
    return max(share, max(longest_context(session) for session in sessions))


def longest_context(session: Session) -> int:
    """Prompt and answer of the longest turn, sub-agents included."""
    return max(t.num_prompt_tokens + t.num_output_tokens for member in session.family() for t in member.turns)


def scale_to_fit(workload: Workload, max_model_len: int, *, seed: int = 0) -> float:
    """The factor, at most 1, that brings the longest of the first sessions to 95 % of `max_model_len`."""
    longest = max(longest_context(session) for session in islice(generate(workload, seed=seed), _NUM_SAMPLED))
    return min(1.0, 0.95 * max_model_len / longest)


def describe(workload: Workload, num_sessions: int, *, seed: int = 0) -> dict[str, float]:
    """Means over the first sessions, for tables and for checking a definition against the traffic it is shaped on."""
    sessions = list(islice(generate(workload, seed=seed), num_sessions))
    members = [member for session in sessions for member in session.family()]
    turns = [turn for member in members for turn in member.turns]
    prompt = sum(turn.num_prompt_tokens for turn in turns)
    return {
        "turns_per_session": sum(len(s.turns) for s in sessions) / len(sessions),
        "isl_mean": prompt / len(turns),
        "osl_mean": sum(turn.num_output_tokens for turn in turns) / len(turns),
        "reusable_share": reusable_tokens(members) / prompt,
        "sub_agent_share": sum(1 for s in sessions if s.children) / len(sessions),
        "sub_agents_per_session": (len(members) - len(sessions)) / len(sessions),
        "working_set_tokens": working_set_tokens(sessions),
    }


def reusable_tokens(sessions: Sequence[Session]) -> int:
    """Prompt tokens that an endless prefix cache would already hold, taking the sessions one after the other."""
    return reusable_turn_tokens([turn for session in sessions for turn in session.turns])


def reusable_turn_tokens(turns: Sequence[Turn]) -> int:
    """As `reusable_tokens`, of turns in the order they are sent; an answer is cached with its prompt."""
    known: dict[tuple[str, str], int] = {}  # (segment before, segment) -> tokens of the longest seen
    reused = 0
    for turn in turns:
        before, is_hit = "", True
        for segment in turn.prompt:
            seen = known.get((before, segment.key), 0)
            if segment.reply_turn is not None:
                seen = segment.num_tokens  # it follows its own prompt, which is a hit or not
            if is_hit:
                reused += min(seen, segment.num_tokens)
                is_hit = seen >= segment.num_tokens
            known[before, segment.key] = max(seen, segment.num_tokens)
            before = segment.key
    return reused
