"""Drafts that are rejected never happened: logits and cache bytes equal those of a run without drafts."""

from __future__ import annotations

import random

import pytest

from tests.deepseek_v4.conftest import Golden
from tests.deepseek_v4.harness import Harness
from tests.deepseek_v4.test_v4_equivalence import assert_same_bytes, tokens
from tests.deepseek_v4.test_v4_goldens import same_bits
from tokenmill.models.deepseek_v4.model import DeepseekV4

NUM_DRAFTS = 8
AROUND = [*range(1, 9), *range(120, 133), *range(248, 261)]


def check_rollbacks(model: DeepseekV4, ids: list[int], positions: list[int]) -> None:
    """From every length n in `positions`: a step of one token and 8 drafts of which 1..8 are rejected; then more."""
    harness = Harness(model)
    base = harness.start()
    plain = harness.prefill(harness.start(), ids)
    reference = harness.start()
    order = random.Random(0)
    for n in positions:
        harness.prefill(base, ids[base.num_computed : n])
        seqs = [harness.clone(base) for _ in range(NUM_DRAFTS)]
        accepted = list(range(1, NUM_DRAFTS + 1))  # 8 .. 1 drafts rejected
        right = [ids[n : n + a] for a in accepted]
        items = [
            (seq, r + order.choices(range(2, 256), k=NUM_DRAFTS + 1 - len(r)))
            for seq, r in zip(seqs, right, strict=True)
        ]
        logits = harness.step(items, drafts=[NUM_DRAFTS] * len(items), accepted=accepted)
        for rows, a in zip(logits, accepted, strict=True):
            assert same_bits(rows[:a], plain[n : n + a]), f"{a} of {NUM_DRAFTS + 1} rows accepted at {n}"
        if n % 4 == 3:  # bytes of one accepted length per position are enough, each length gets its turn
            a = accepted[n // 4 % NUM_DRAFTS]
            fresh = harness.clone(reference)
            harness.prefill(fresh, ids[reference.num_computed : n + a])
            assert_same_bytes(harness, seqs[a - 1], harness, fresh)
            harness.finish(fresh)
        # Going on overwrites what the rejected drafts left behind.
        again = harness.step([(seq, ids[seq.num_computed :][:9]) for seq in seqs])
        for seq, rows in zip(seqs, again, strict=True):
            assert same_bits(rows, plain[seq.num_computed - len(rows) : seq.num_computed]), f"after roll-back at {n}"
            harness.finish(seq)
        if n - reference.num_computed > 40:
            harness.prefill(reference, ids[reference.num_computed : n])


def test_rollback_at_every_position(tiny_model: DeepseekV4) -> None:
    """S09: acceptance of 1..8 of 9 rows at every position modulo 4 and around two block boundaries."""
    check_rollbacks(tiny_model, tokens(290, 7), AROUND)


@pytest.mark.parametrize("path", ["native", pytest.param("reference", marks=pytest.mark.slow)])
def test_golden_rollback(golden: Golden, path: str) -> None:
    """The same on the golden checkpoints, with their prompt."""
    check_rollbacks(golden.model(path), golden.ids(300), AROUND)


@pytest.mark.parametrize("seed", [0, 1])
def test_speculative_run_equals_plain_run(tiny_model: DeepseekV4, seed: int) -> None:
    """A whole run of random drafts and random acceptance, several sequences with different draft counts together."""
    ids = [tokens(200, 20 + i) for i in range(3)]
    harness, order = Harness(tiny_model), random.Random(seed)
    plain = [harness.prefill(harness.start(), x) for x in ids]
    seqs = [harness.start() for _ in ids]
    for seq, x, first in zip(seqs, ids, (1, 60, 115), strict=True):
        harness.prefill(seq, x[:first])
    for _ in range(18):
        drafts = [order.randint(0, 5) for _ in seqs]
        accepted = [1 + order.randint(0, k) for k in drafts]
        items = []
        for seq, x, k, a in zip(seqs, ids, drafts, accepted, strict=True):
            right = x[seq.num_computed :][:a]
            items.append((seq, right + order.choices(range(2, 256), k=1 + k - len(right))))
        starts = [seq.num_computed for seq in seqs]
        logits = harness.step(items, drafts=drafts, accepted=accepted)
        for rows, p, start, a in zip(logits, plain, starts, accepted, strict=True):
            assert same_bits(rows[:a], p[start : start + a])
    fresh = harness.start()
    harness.prefill(fresh, ids[0][: seqs[0].num_computed])
    assert_same_bytes(harness, seqs[0], harness, fresh)


def test_commit_wants_the_batch_of_its_forward(tiny_model: DeepseekV4) -> None:
    harness = Harness(tiny_model)
    seq = harness.start()
    harness.prefill(seq, tokens(10))
    batch = harness.batch([(seq, [5, 6, 7])], drafts=[2])
    with pytest.raises(AssertionError, match="same batch"):
        tiny_model.commit(batch, harness.caches, [1])
    tiny_model.forward(batch, harness.caches)
    with pytest.raises(AssertionError, match="accepted"):
        tiny_model.commit(batch, harness.caches, [0])
