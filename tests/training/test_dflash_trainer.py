"""The drafter's trainer: learns, goes on where it was, and what it writes is served."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.speculative.conftest import engine_of, prompt_of, request, run
from tests.speculative.dflash_direct import direct_hidden
from tests.tiny import write_tiny_llama
from tokenmill.models.dflash.config import read_dflash_config
from tokenmill.models.weights import open_checkpoint
from training import dflash


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dflash-training")
    target = write_tiny_llama(folder / "target", vocab_size=64, num_layers=2, std=0.3)
    (folder / "corpus").mkdir()
    np.random.default_rng(0).integers(2, 64, 4000).astype(np.uint16).tofile(folder / "corpus" / "a.train.u16")
    base = dflash.Run(
        target=target, corpus=folder / "corpus", out=folder / "out", steps=30, texts=40, prompt=16, answer=48, rows=2,
        anchors=6, block=4, warmup=5, features=2, rate=5e-3, threads=1,
    )  # fmt: skip
    return lambda **changes: dataclasses.replace(base, **changes)


def test_it_learns_and_what_it_writes_drafts_for_the_target(run_of):
    done = run_of(out=run_of().out / "learns", steps=60)
    trainer = dflash.Trainer(done)
    first = np.mean([trainer.learn() for _ in range(5)])
    while trainer.step < done.steps:
        last = trainer.learn()
    assert last < 0.9 * first
    trainer.save()
    assert read_dflash_config(open_checkpoint(done.out).config, done.out).block_size == 4
    speculative = {"method": "dflash", "model": str(done.out), "num_speculative_tokens": 3, "adaptive": False}
    one = request("a", prompt_of(1, 20, 64), 20)
    want = run(engine_of(done.target), one)["a"]
    got = run(engine_of(done.target, speculative), one)["a"]
    assert got.said == want.said and got.num_drafts > 0


def test_stopped_and_started_again_equals_going_through(run_of):
    through = run_of(out=run_of().out / "through")
    dflash.train(through)
    halves = run_of(out=run_of().out / "halves")
    trainer = dflash.Trainer(halves)
    while trainer.step < 13:
        trainer.learn()
    trainer.save()
    dflash.train(halves)
    a, b = (torch.load(one.out / "state.pt", weights_only=True)["weights"] for one in (through, halves))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_learner_computes_what_the_definition_says(run_of, tmp_path):
    one = run_of(out=tmp_path / "same")
    trainer = dflash.Trainer(one)
    for weight in trainer.weights.values():
        weight.data.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    trainer.save()
    tensors = {name: t.detach().bfloat16().float() for name, t in trainer.weights.items()}
    learner = dflash.Learner(trainer.config, tensors)
    features, embedded = torch.randn(20, 128), torch.randn(2, 4, 64)
    got = learner.hidden(features, embedded, torch.tensor([7, 15]))
    for i, anchor in enumerate((7, 15)):
        want = direct_hidden(one.out, features[:anchor], embedded[i])
        assert (got[i].double() - want).abs().max() < 1e-4
