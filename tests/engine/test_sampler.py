"""The sampler: greedy, truncations, penalties, and draws that depend on nothing but their key and row."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.request import Request, SamplingParams
from tokenmill.engine.rng import uniform
from tokenmill.engine.sampler import SamplingRow, sample

VOCAB = 50


def row(prompt=(1,), output=(), seed=0, choice=0, **sampling):
    request = Request(
        request_id="r",
        model="m",
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(**sampling),
        seed=seed,
        choice_index=choice,
        eos_token_ids=(2,),
    )
    return SamplingRow(request, [*prompt, *output])


def logits_of(seed, rows=1, vocab=VOCAB):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draws(logits, num, **sampling):
    rows = [row(seed=s, **sampling) for s in range(num)]
    return [r.token_id for r in sample(logits.expand(num, -1).clone(), rows)]


def test_greedy_is_the_first_of_the_best():
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 30]] = 5.0
    assert sample(logits, [row(temperature=0.0)])[0].token_id == 7


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"top_k": 10, "top_p": 0.6},
        {"min_p": 0.2},
        {"top_p": 0.9, "min_p": 0.1},
    ],
)
def test_draws_follow_the_truncated_distribution(sampling):
    """Compared with the textbook definition, applied step by step in float64."""
    logits = logits_of(3)[0]
    probs = torch.softmax(logits.double() / sampling.get("temperature", 1.0), -1)
    order = probs.argsort(descending=True)
    if "top_k" in sampling:
        probs[order[sampling["top_k"] :]] = 0
        probs /= probs.sum()
    if "top_p" in sampling:
        mass = probs[order].cumsum(0)
        probs[order[1:][mass[:-1] >= sampling["top_p"]]] = 0
    if "min_p" in sampling:
        probs[probs < sampling["min_p"] * probs.max()] = 0
    probs /= probs.sum()
    num = 4000
    counts = torch.bincount(torch.tensor(draws(logits, num, **sampling)), minlength=VOCAB)
    assert not counts[probs == 0].any()
    chi2 = ((counts - num * probs) ** 2 / (num * probs))[probs > 0].sum()
    dof = int((probs > 0).sum()) - 1
    assert chi2 < dof + 5 * math.sqrt(2 * dof) + 5


def test_a_nucleus_larger_than_the_candidates_is_still_exact():
    vocab = 5000
    logits = torch.zeros(1, vocab)  # uniform: 0.9 of the mass is 4,500 tokens, far beyond the candidates
    ids = draws(logits[0], 400, top_p=0.9)
    assert max(ids) < 4500 and max(ids) > 2000


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), at=st.integers(0, 4), top_p=st.sampled_from([1.0, 0.7]), top_k=st.integers(0, 9))
def test_a_row_does_not_depend_on_its_neighbours(seed, at, top_p, top_k):
    logits = logits_of(seed, rows=5)
    mine = row(seed=seed, top_p=top_p, top_k=top_k, frequency_penalty=0.5, output=(4, 4, 9))
    alone = sample(logits[at : at + 1].clone(), [mine])[0]
    others = [row(seed=seed + 1 + i, temperature=float(i % 2)) for i in range(5)]
    others[at] = mine
    assert sample(logits.clone(), others)[at] == alone


def test_draws_differ_by_seed_position_and_choice():
    keys = {(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0)}
    assert len({uniform(*key) for key in keys}) == len(keys)
    assert uniform(5, 6, 7) == uniform(5, 6, 7)
    values = [uniform(9, i, 0) for i in range(4000)]
    assert abs(sum(values) / 4000 - 0.5) < 0.02 and min(values) >= 0 and max(values) < 1


def test_penalties_move_only_what_they_name():
    logits = torch.full((1, VOCAB), 1.0)
    logits[0, 3] = -1.0
    adjusted = logits.clone()
    sample(adjusted, [row(prompt=(5, 3), output=(7, 7, 8), repetition_penalty=2.0, frequency_penalty=0.5,
                          presence_penalty=0.25, temperature=0.0)])  # fmt: skip
    want = torch.full((VOCAB,), 1.0)
    want[5] = 0.5
    want[3] = -2.0
    want[7] = 0.5 - 0.25 - 1.0
    want[8] = 0.5 - 0.25 - 0.5
    assert torch.allclose(adjusted[0], want)


def test_frequency_penalty_has_an_effect_in_a_loop():
    """S28, without speculation: the sign of the penalty decides whether the loop goes on."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 5] = 1.0, 0.9
    loop = {"output": (4,) * 10, "temperature": 0.0}
    assert sample(logits.clone(), [row(frequency_penalty=2.0, **loop)])[0].token_id == 5
    assert sample(logits.clone(), [row(frequency_penalty=-2.0, **loop)])[0].token_id == 4


def test_bias_and_min_tokens():
    logits = torch.zeros(1, VOCAB)
    logits[0, 2] = 9.0  # end of sequence
    assert sample(logits.clone(), [row(temperature=0.0)])[0].token_id == 2
    assert sample(logits.clone(), [row(temperature=0.0, min_tokens=1)])[0].token_id == 0
    assert sample(logits.clone(), [row(temperature=0.0, min_tokens=1, output=(1,))])[0].token_id == 2
    assert sample(logits.clone(), [row(temperature=0.0, min_tokens=1, ignore_eos=True)])[0].token_id == 2
    assert sample(logits.clone(), [row(temperature=0.0, logit_bias={11: 100.0})])[0].token_id == 11
    banned = row(temperature=0.0, min_tokens=2, stop_token_ids=(0,))
    assert sample(logits.clone(), [banned])[0].token_id == 1


def test_logprobs_are_of_the_raw_distribution():
    logits = logits_of(5)
    want = torch.log_softmax(logits[0], -1)
    got = sample(logits.clone(), [row(logprobs=3, temperature=0.0, logit_bias={9: 100.0})])[0]
    assert got.token_id == 9 and got.logprob is not None
    assert got.logprob.logprob == pytest.approx(float(want[9]))
    assert [i for i, _ in got.logprob.top] == want.topk(3).indices.tolist()
    assert sample(logits.clone(), [row(logprobs=0)])[0].logprob.top == ()
    assert sample(logits.clone(), [row()])[0].logprob is None


def test_a_token_that_is_impossible_is_never_drawn_and_a_row_without_a_possible_one_fails():
    logits = logits_of(1, rows=3)
    logits[0] = logits[1] = logits[2]
    logits[0, logits[0].argmax()] = -torch.inf
    logits[1] = -torch.inf
    second, failed, best = sample(logits.clone(), [row(temperature=0.0)] * 3)
    assert second.error is None and second.token_id == logits[2].topk(2).indices[1]
    assert failed.error is not None
    assert best.token_id == logits[2].argmax()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_ends_alone(bad):
    logits = logits_of(1, rows=2)
    want = sample(logits[1:].clone(), [row(seed=3)])[0]
    logits[0, 4] = bad
    broken, fine = sample(logits, [row(logprobs=2), row(seed=3)])
    assert broken.error is not None and "non-finite" in broken.error
    assert fine == want
