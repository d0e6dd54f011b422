"""Generated sessions: reproducible, prefixes that grow, runs that share nothing, replies in their place."""

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.workloads import content
from tokenmill.workloads.content import Segment
from tokenmill.workloads.library import load_workload
from tokenmill.workloads.sessions import Session, generate

VOCAB = 5000
SMALL_AGENTS = load_workload("agentic").scaled(0.004)


def _first(num: int, *, seed: int = 0, run: str = "run") -> list[Session]:
    return list(islice(generate(SMALL_AGENTS, seed=seed, run=run), num))


def _ids(session: Session) -> list[list[int]]:
    return [content.token_ids(turn.prompt, VOCAB) for turn in session.turns]


def test_same_seed_same_sessions_and_the_nth_does_not_depend_on_the_others() -> None:
    assert _first(5) == _first(9)[:5]
    assert _first(3, seed=1) != _first(3, seed=2)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_each_prompt_starts_with_the_one_before_and_its_answer(seed: int) -> None:
    (session,) = _first(1, seed=seed)
    for member in session.family():
        ids = _ids(member)
        for index in range(1, len(ids)):
            before = member.turns[index - 1]
            assert ids[index][: len(ids[index - 1])] == ids[index - 1]
            assert len(ids[index]) > len(ids[index - 1]) + before.num_output_tokens
            assert member.turns[index].num_prompt_tokens == len(ids[index])


def test_sessions_share_the_prefix_and_nothing_else() -> None:
    a, b = (_ids(session)[0] for session in _first(2))
    shared = SMALL_AGENTS.prefix_tokens.mean()
    assert a[: round(shared)] == b[: round(shared)] and a[round(shared) :][:8] != b[round(shared) :][:8]


def test_two_runs_share_no_block() -> None:
    """Sweep cells that repeat prompts measure the cache (S-list of load tools): another run, other tokens."""
    hasher = BlockHasher(16, "w")
    one, two = (
        {block for session in _first(4, run=run) for ids in _ids(session) for block in hasher.hash_blocks(ids)}
        for run in ("cell-1", "cell-2")
    )
    assert one and two and not one & two
    lengths = [[t.num_prompt_tokens for s in _first(4, run=run) for t in s.turns] for run in ("cell-1", "cell-2")]
    assert lengths[0] == lengths[1]


def test_sub_agents_of_one_session_share_their_brief() -> None:
    session = next(session for session in _first(40) if len(session.children) > 1)
    assert all(child.parent_session_id == session.session_id for child in session.children)
    first, second = (child.turns[0].prompt for child in session.children[:2])
    assert first[:2] == second[:2] and first[2] != second[2]
    assert session.children[0].after_turn < len(session.turns) - 1


def test_answers_take_the_place_of_their_filler() -> None:
    prompt = (Segment("p", 4), Segment("a", 3, reply_turn=0), Segment("q", 2))
    filler, real = content.token_ids(prompt, VOCAB), content.token_ids(prompt, VOCAB, {0: [7, 7]})
    assert len(filler) == 9
    assert real == [*filler[:4], 7, 7, *filler[-2:]]
    assert content.token_ids(prompt, VOCAB) == filler  # the cache was not changed


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_shorter_segment_is_the_front_of_a_longer_one(few: int, many: int) -> None:
    few, many = sorted((few, many))
    assert content.token_ids([Segment("k", many)], VOCAB)[:few] == content.token_ids([Segment("k", few)], VOCAB)
    assert content.text([Segment("k", many)]).startswith(content.text([Segment("k", few)]))
