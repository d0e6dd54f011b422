"""The trainer on a small model: the loss falls, a resumed run goes on as one that was not interrupted, files load."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tokenmill.models.registry import load_model
from training import model
from training.optimiser import Optimiser, Parameter, Rates, orthogonal
from training.train import Run, Trainer, train

ROOT = Path(__file__).parents[2]


def run_of(corpus: Path, out: Path, **changes: object) -> Run:
    sizes = {"steps": 8, "rows": 2, "length": 128, "long_steps": 2, "long_length": 256, "warmup": 2}
    return Run(corpus=corpus, out=out, evaluate_every=1000, **(sizes | changes))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.ci
@pytest.mark.timeout(150)
def test_two_processes_learn(corpus: Path, small_config: dict, tmp_path: Path) -> None:
    """The command itself: two ranks average their gradients, the loss falls, the checkpoint can be served."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_config))
    out = tmp_path / "out"
    sizes = ["--rows", "4", "--length", "128", "--warmup", "2", "--steps", "40"]
    command = [sys.executable, "-m", "training.train", "--corpus", corpus, "--out", out, "--config", config, *sizes]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environ, capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert losses[0] > 6 and losses[-1] < losses[0] - 0.5, losses
    loaded = load_model(out / "model", dtype="float32", extra={"mtp": "on"})
    assert loaded.model.num_mtp == 1 and loaded.tokenizer_path is not None


def test_a_resumed_run_is_the_uninterrupted_one(corpus: Path, small_config: dict, tmp_path: Path) -> None:
    whole = train(run_of(corpus, tmp_path / "whole"), small_config)
    part = Trainer(run_of(corpus, tmp_path / "parts"), small_config, 0, 1)
    part.run.out.mkdir()
    losses = [part.step()["loss"] for _ in range(5)]
    assert losses[-1] < losses[0] - 0.05, losses
    part.save()
    rest = train(run_of(corpus, tmp_path / "parts"), small_config)
    assert rest.number == whole.number == 8
    for one, two in zip(whole.parameters, rest.parameters, strict=True):
        assert torch.equal(one.value, two.value), one.name
    assert all(map(torch.equal, whole.biases, rest.biases))


def test_what_is_written_is_read_again(corpus: Path, small_config: dict, tmp_path: Path) -> None:
    trainer = Trainer(run_of(corpus, tmp_path), small_config, 0, 1)
    trainer.save()
    trainer.step()
    trainer.save()  # in the place of the first
    config, weights = model.load(tmp_path / "model")
    assert config == small_config
    torch.testing.assert_close(weights.embed, trainer.weights.embed.detach().bfloat16().float())
    assert len(list(tmp_path.glob("model-*"))) == 1


def test_an_update_without_a_finite_gradient_changes_nothing(corpus: Path, small_config: dict, tmp_path: Path) -> None:
    trainer = Trainer(run_of(corpus, tmp_path), small_config, 0, 1)
    before = [p.value.detach().clone() for p in trainer.parameters]
    with torch.no_grad():
        trainer.weights.collapse.norm.fill_(float("inf"))
    trainer.step()
    assert trainer.number == 1
    for p, value in zip(trainer.parameters, before, strict=True):
        assert p.value is trainer.weights.collapse.norm or torch.equal(p.value, value), p.name


def test_the_schedule_warms_up_and_ends_at_zero(corpus: Path, tmp_path: Path) -> None:
    run = run_of(corpus, tmp_path, steps=100, warmup=10, cooldown=0.5, long_steps=20)
    factors = [run.factor(step) for step in range(100)]
    assert factors[0] == 0.1 and factors[10:50] == [1.0] * 40 and 0 < factors[-1] < 0.03
    assert run.phase(79).length == 128 and run.phase(80).length == 256
    assert run.phase(80).rows_per_step * 256 == run.phase(0).rows_per_step * 128


def test_muon_turns_every_matrix_of_a_fused_tensor_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 12, 16, generator=generator)
    singular = torch.linalg.svdvals(orthogonal(matrix))
    assert singular.min() > 0.5 and singular.max() < 1.3
    parameter = Parameter("w", torch.zeros(3, 12, 16), (4, 8), 1.0)
    optimiser = Optimiser([parameter], Rates(muon_decay=0.0))
    gradient = matrix.clone()
    gradient[:, :4] *= 1e-3  # a matrix with small gradients moves as far as its neighbour
    optimiser.step([gradient], 1, 1.0)
    upper, lower = parameter.value.split((4, 8), dim=1)
    torch.testing.assert_close(upper.norm() / 4**0.5, lower.norm() / 8**0.5, rtol=0.15, atol=0)


def test_training_goes_on_from_a_shipped_model(corpus: Path, small_config: dict, tmp_path: Path) -> None:
    Trainer(run_of(corpus, tmp_path / "first"), small_config, 0, 1).save()
    weights = Trainer(
        run_of(corpus, tmp_path, seed=1, initial=tmp_path / "first" / "model"), small_config, 0, 1
    ).weights
    torch.testing.assert_close(weights.head.detach(), model.load(tmp_path / "first" / "model")[1].head)
    other = Trainer(run_of(corpus, tmp_path, seed=1), small_config, 0, 1).weights
    assert not torch.equal(weights.head, other.head)


def test_the_length_of_a_run_can_be_changed_while_it_runs(corpus: Path, small_config: dict, tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("3\n")
    trainer = train(run_of(corpus, tmp_path), small_config)
    assert trainer.number == 3 and trainer.run.factor(2) < 1.0
