"""Draft lengths by price, on made-up machines: pure, no engine."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tokenmill.engine.speculative.acceptance import Acceptance
from tokenmill.engine.speculative.cost_table import CostTable
from tokenmill.engine.speculative.counters import DraftCounters
from tokenmill.engine.speculative.depth import Candidate, StepCost
from tokenmill.engine.speculative.pricing import PricedDepth

DRAFTS = 7


class Machine:
    """step_s(rows), draft_s(sequences, depth), keep_s(sequences); drafts stay with probability `alpha` each."""

    def __init__(self, step_s, draft_s, keep_s, alpha, seed=0):
        self.step_s, self.draft_s, self.keep_s, self.alpha = step_s, draft_s, keep_s, alpha
        self.draw = random.Random(seed)

    def run(self, policy, num_seqs, num_steps, noise=0.05):
        """(tokens, seconds, mean drafts per sequence and step)"""
        tokens = seconds = drafted = 0.0
        for _ in range(num_steps):
            wishes = policy.plan([Candidate(f"r{i}", 99) for i in range(num_seqs)], 0)
            is_kept, depth = not policy.is_dormant, max(wishes)
            accepted = [self.stay(n) for n in wishes]
            verify_s = self.step_s(num_seqs + sum(wishes)) * (1 + noise * self.draw.random())
            wishing = sum(n > 0 for n in wishes)
            draft_s = self.draft_s(wishing, depth) if wishing else self.keep_s(num_seqs) * is_kept
            for i, (n, kept) in enumerate(zip(wishes, accepted, strict=True)):
                if n:
                    policy.record(f"r{i}", n, kept)
            policy.record_step(
                StepCost(num_seqs + sum(wishes), num_seqs, 0, wishing, depth, is_kept, verify_s, draft_s)
            )
            tokens += num_seqs + sum(accepted)
            seconds += verify_s + draft_s
            drafted += sum(wishes) / num_seqs
        return tokens, seconds, drafted / num_steps

    def stay(self, n):
        return next((i for i in range(n) if self.draw.random() >= self.alpha), n)


def rate(machine, policy, num_seqs, num_steps=1500):
    machine.run(policy, num_seqs, 300)
    tokens, seconds, drafted = machine.run(policy, num_seqs, num_steps)
    return tokens / seconds, drafted


def fixed(machine, num_seqs, k):
    """Expected tokens per second of always k drafts."""
    tokens = sum(machine.alpha**i for i in range(k + 1)) * num_seqs
    draft_s = machine.draft_s(num_seqs, k) if k else 0.0
    return tokens / (machine.step_s(num_seqs * (1 + k)) * 1.025 + draft_s)


#: Memory-bound until 8 rows, then by the row; and compute-bound from the first row on.
FLAT = {"step_s": lambda rows: 0.03 * max(1.0, rows / 8), "draft_s": lambda n, k: 0.002 * k, "keep_s": lambda n: 0.001}
STEEP = {"step_s": lambda rows: 0.002 + 0.002 * rows, "draft_s": lambda n, k: 0.002 * k, "keep_s": lambda n: 0.001}


@pytest.mark.parametrize("machine", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("num_seqs", [1, 4, 16])
def test_close_to_the_best_fixed_length_and_to_off(machine, alpha, num_seqs):
    """At least 0.9 x the best length and 0.95 x no speculation, whatever acceptance and batch size."""
    got, _ = rate(Machine(**machine, alpha=alpha), PricedDepth(DRAFTS), num_seqs)
    best = max(fixed(Machine(**machine, alpha=alpha), num_seqs, k) for k in range(DRAFTS + 1))
    assert got > 0.9 * best
    assert got > 0.95 * fixed(Machine(**machine, alpha=alpha), num_seqs, 0)


def test_off_where_it_does_not_pay_and_on_again_when_the_batch_shrinks():
    policy, machine = PricedDepth(DRAFTS), Machine(**FLAT, alpha=0.8)
    assert rate(machine, policy, 1)[1] > 3
    machine.alpha = 0.3
    _, drafted = rate(machine, policy, 64)
    assert drafted < 0.2 and policy.is_dormant
    machine.alpha = 0.8
    assert rate(machine, policy, 1)[1] > 3


def test_every_request_gets_what_its_own_drafts_are_worth():
    """One sequence repeats itself, three do not."""
    policy, draw = PricedDepth(DRAFTS), random.Random(0)
    alpha = {"r0": 0.95, "r1": 0.1, "r2": 0.1, "r3": 0.1}
    totals = dict.fromkeys(alpha, 0)
    for step in range(400):
        wishes = policy.plan([Candidate(name, 99) for name in alpha], 0)
        for name, n in zip(alpha, wishes, strict=True):
            if n:
                policy.record(name, n, next((i for i in range(n) if draw.random() >= alpha[name]), n))
            totals[name] += n if step > 100 else 0
        rows = 4 + sum(wishes)
        policy.record_step(
            StepCost(rows, 4, 0, sum(n > 0 for n in wishes), max(wishes), True, 0.01 + 0.001 * rows, 0.0)
        )
    assert totals["r0"] > 4 * max(totals[name] for name in ("r1", "r2", "r3"))


def test_limits_are_kept():
    policy = PricedDepth(DRAFTS)
    policy.record_step(StepCost(2, 2, 0, 0, 0, True, 0.01, 0.0))
    for _ in range(100):
        wishes = policy.plan([Candidate("a", 0), Candidate("b", 2)], 5)
        assert wishes[0] == 0 and 0 <= wishes[1] <= 2
    assert policy.plan([], 7) == []
    policy.forget("never seen")


def test_acceptance_by_position_and_request():
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.record("good", 3, 3)
        acceptance.record("bad", 3, 0)
    good, bad = acceptance.survivals("good", 5), acceptance.survivals("bad", 5)
    assert all(a >= b for row in (good, bad) for a, b in pairwise(row))
    assert good[0] > 0.9 > 0.2 > bad[0]
    acceptance.forget("bad")
    assert acceptance.survivals("bad", 1)[0] == acceptance.survivals("new", 1)[0]


def test_costs_between_and_beyond_what_was_measured():
    table = CostTable()
    assert not table and table.seconds(3) == 0
    for size, seconds in ((1, 1.0), (5, 3.0), (5, 9.0), (5, 3.0)):
        table.record(size, seconds)
    assert [table.seconds(n) for n in (0, 1, 3, 5, 7)] == [1.0, 1.0, 2.0, 3.0, 4.0]
    table.record(6, 1.0)  # measured once, and lucky
    assert table.seconds(5) == table.seconds(6) == pytest.approx(2.5)


def test_counters_by_position():
    counters = DraftCounters()
    assert counters.acceptance_length is None
    for verified, accepted in ((3, 1), (2, 2), (1, 0)):
        counters.record(verified, accepted)
    assert (counters.verified_at, counters.accepted_at) == ([3, 2, 1], [2, 1, 0])
    assert counters.acceptance_length == 2.0
