"""Speculation that gives fewer tokens per second than plain steps sleeps, whatever its estimates say."""

from __future__ import annotations

from tokenmill.engine.speculative.depth import Candidate, StepCost
from tokenmill.engine.speculative.pricing import PricedDepth
from tokenmill.engine.speculative.results import Results


def cost(depth: int, verify_s: float, draft_s: float = 0.0, *, num_decoding: int = 4, is_kept: bool = True) -> StepCost:
    num_rows = num_decoding * (1 + depth)
    return StepCost(num_rows, num_decoding, 0, num_decoding if depth else 0, depth, is_kept, verify_s, draft_s)


def recorded(seconds_drafting: float, num_kept: int, *, num_decoding: int = 4) -> Results:
    results = Results()
    for _ in range(20):
        results.record(cost(0, 1.0, num_decoding=num_decoding), 0)
    for _ in range(40):
        results.record(cost(2, seconds_drafting, 0.5, num_decoding=num_decoding), num_kept)
    return results


def test_nothing_is_judged_before_there_were_steps_of_both_kinds() -> None:
    results = Results()
    for _ in range(50):
        results.record(cost(0, 1.0, 1.0), 0)
    assert not results.is_losing(4)  # dear caches alone are no verdict on drafts that were never tried
    assert results.is_close(4)


def test_fewer_tokens_per_second_than_plain_steps_is_a_loss() -> None:
    assert recorded(1.5, num_kept=2).is_losing(4)
    assert not recorded(1.5, num_kept=6).is_losing(4)
    assert not recorded(1.5, num_kept=20).is_close(4)


def test_batches_of_other_sizes_are_judged_apart() -> None:
    results = recorded(1.5, num_kept=2)
    assert results.is_losing(7) and not results.is_losing(8) and not results.is_losing(3)


def test_prompts_in_a_step_say_nothing_about_drafts() -> None:
    results = Results()
    for _ in range(40):
        results.record(StepCost(100, 4, 96, 4, 2, True, 9.0, 1.0), 0)
        results.record(cost(0, 1.0), 0)
    assert not results.is_losing(4)


def test_a_loss_puts_the_proposer_to_sleep_and_it_gets_another_chance() -> None:
    """Drafts stay and look cheap, but steps with them are slower by what no estimate knows of."""
    policy = PricedDepth(2)
    awake_after: list[bool] = []
    for _ in range(2000):
        drafts = policy.plan([Candidate(str(i), 2) for i in range(4)], 0)
        is_kept = not policy.is_dormant
        for i, depth in enumerate(drafts):
            if depth:
                policy.record(str(i), depth, 1)
        # verification is billed at the plain rate until caches are kept: then everything is dear
        num_drafts = sum(drafts)
        policy.record_step(
            StepCost(4 + num_drafts, 4, 0, sum(d > 0 for d in drafts), max(drafts), is_kept, 1.0, 2.0 if is_kept else 0)
        )
        awake_after.append(is_kept)
        assert is_kept or not num_drafts
    assert sum(awake_after[100:1000]) == 0
    assert 0 < sum(awake_after[1000:]) < 100
