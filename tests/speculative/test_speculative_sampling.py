"""At temperature > 0: what comes out is distributed as without drafts, and a seed gives the same text again."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.speculative.conftest import engine_of, prompt_of, request, run
from tokenmill.core.request import Request, SamplingParams
from tokenmill.engine.sampler import SamplingRow, distribution, draw_draft, sample
from tokenmill.engine.speculative.base import Proposal
from tokenmill.engine.speculative.verify import judge, rows_to_verify

VOCAB = 8
SAMPLINGS = [
    {},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.4, "top_k": 3},
    {"frequency_penalty": 1.2, "presence_penalty": 0.5},
    {"logit_bias": {2: 1.5, 5: -100.0}},
]
CASES = [
    *((1500, sampling) for sampling in SAMPLINGS[:2]),
    *(pytest.param(10_000, sampling, marks=pytest.mark.ci) for sampling in SAMPLINGS[:4]),
    *(pytest.param(100_000, sampling, marks=pytest.mark.slow) for sampling in SAMPLINGS),
]
#: Upper 0.1 % points of chi-square with so many degrees of freedom (Pearson's table).
CHI_SQUARE_999 = dict(enumerate((0.0, 10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12)))


def logits_of(seed: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5


def request_of(seed: int, sampling: dict) -> Request:
    params = SamplingParams(**{"temperature": 1.0, **sampling})
    return Request(request_id="r", model="m", prompt_token_ids=[1, 2], sampling=params, seed=seed)


def one_step(request: Request, target: torch.Tensor, drafter: torch.Tensor, *, is_drawn: bool) -> tuple[int, ...]:
    """Two drafts from `drafter` [2, V], verified against `target` [3, V]: tokens that come out of the step."""
    drafts: list[int] = []
    probs = []
    for i in range(2):
        row = SamplingRow(request, [1, 2], drafts=tuple(drafts))
        q = distribution(drafter[i].clone(), row)
        drafts.append(draw_draft(q, row) if is_drawn else int(q.argmax()))
        probs.append(q)
    proposal = Proposal(tuple(drafts), torch.stack(probs) if is_drawn else None)
    rows = rows_to_verify(request, [1, 2], proposal, [])
    return judge(rows, sample(target.clone(), rows)).token_ids


def chi_square(counts: Counter, probs: torch.Tensor, total: int) -> tuple[float, int]:
    used = [(counts[t], p * total) for t, p in enumerate(probs.tolist()) if p > 0]
    assert sum(count for count, _ in used) == total, "a token without probability came out"
    return sum((seen - want) ** 2 / want for seen, want in used), len(used) - 1


@pytest.mark.parametrize("is_drawn", [True, False], ids=["probabilistic", "greedy"])
@pytest.mark.parametrize(("num_draws", "sampling"), CASES)
def test_tokens_are_distributed_as_without_drafts(num_draws, sampling, is_drawn):
    """First tokens against the target's row; second tokens, where the first draft stayed, against the next row."""
    target, drafter = logits_of(1, 3), logits_of(2, 2)
    first, second = Counter(), {}
    for seed in range(num_draws):
        tokens = one_step(request_of(seed, sampling), target, drafter, is_drawn=is_drawn)
        first[tokens[0]] += 1
        if len(tokens) > 1:
            second.setdefault(tokens[0], Counter())[tokens[1]] += 1
    plain = distribution(target[0].clone(), SamplingRow(request_of(0, sampling), [1, 2]))
    statistic, freedom = chi_square(first, plain, num_draws)
    assert statistic < CHI_SQUARE_999[freedom], f"first token: {statistic:.1f} with {freedom}"
    token, counts = max(second.items(), key=lambda item: item[1].total())
    after = distribution(target[1].clone(), SamplingRow(request_of(0, sampling), [1, 2], drafts=(token,)))
    statistic, freedom = chi_square(counts, after, counts.total())
    assert statistic < CHI_SQUARE_999[freedom], f"second token: {statistic:.1f} with {freedom}"


def test_drawn_drafts_stay_as_often_as_the_distributions_overlap():
    """Rejection sampling accepts 1 - total variation; a greedy draft stays with its own probability only."""
    target, drafter, n = logits_of(3, 3), logits_of(3, 2) + 0.3 * logits_of(4, 2), 4000
    p, q = (torch.softmax(x[0], 0) for x in (target, drafter))
    drawn = sum(len(one_step(request_of(s, {}), target, drafter, is_drawn=True)) > 1 for s in range(n)) / n
    greedy = sum(len(one_step(request_of(s, {}), target, drafter, is_drawn=False)) > 1 for s in range(n)) / n
    assert abs(drawn - float(torch.minimum(p, q).sum())) < 0.03
    assert abs(greedy - float(p[q.argmax()])) < 0.03
    assert drawn > greedy


def test_an_equal_drafter_is_always_right():
    """Acceptance with the target's own distributions is 100 % (S34 asks it of an oracle)."""
    target = logits_of(5, 3)
    for seed in range(500):
        assert len(one_step(request_of(seed, {"top_p": 0.9}), target, target[:2], is_drawn=True)) == 3


@pytest.mark.parametrize("method", ["ngram", "auto"])
def test_a_seed_gives_the_same_text_with_and_without_drafts(checkpoint, method):
    requests = [request(f"r{i}", prompt_of(i, 8) * 3, 30, seed=i, temperature=1.0, top_p=0.95) for i in range(4)]
    plain, engine = engine_of(checkpoint), engine_of(checkpoint, {"method": method, "prompt_lookup_min": 1})
    want = run(plain, *requests)
    for _ in range(2):
        got = run(engine, *requests)
        assert {name: out.said for name, out in got.items()} == {name: out.said for name, out in want.items()}
