"""The forward with gradients is the engine's forward: same weights, same tokens, same logits, MTP included."""

import pytest
import torch

from tests.deepseek_v4.harness import Harness
from tests.deepseek_v4.tiny import random_tensors, v4_json, write_checkpoint
from tokenmill.kernels.mhc import batched, reference
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.dense import DenseV4
from tokenmill.models.deepseek_v4.weights import Weights, allocate, destinations
from tokenmill.models.registry import load_model

LENGTH = 256  # four windows, 64 entries of CSA of which 8 are kept, two windows of HCA


@pytest.fixture(scope="module")
def config():
    return v4_json()


@pytest.fixture(scope="module")
def tensors(config):
    return random_tensors(config)


def weights_of(config: dict, tensors: dict) -> Weights:
    parsed = DeepseekV4Config.from_dict(config)
    weights = allocate(parsed, torch.float32, num_mtp=1)
    for name, tensor in destinations(parsed, weights).items():
        tensor.copy_(tensors[name])
    return weights


@pytest.fixture(scope="module")
def dense(config, tensors):
    return DenseV4(DeepseekV4Config.from_dict(config), weights_of(config, tensors))


@pytest.fixture(scope="module")
def engine_model(config, tensors, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    write_checkpoint(folder, config, tensors)
    return load_model(folder, dtype="float32", deterministic=True, extra={"mtp": "on"}).model


@pytest.fixture(scope="module")
def rows():
    return torch.randint(0, 256, (2, LENGTH + 1), generator=torch.Generator().manual_seed(7))


def test_logits_equal_the_engines(dense, engine_model, rows):
    streams = dense.streams(rows[:, :-1])
    logits = dense.logits(streams).view(2, LENGTH, -1)
    mtp = dense.mtp_logits(dense.mtp_streams(streams, rows[:, 1:])).view(2, LENGTH, -1)
    for row, got, got_mtp in zip(rows.tolist(), logits, mtp, strict=True):
        harness = Harness(engine_model, num_blocks=8)
        batch = harness.batch([(harness.start(), row[:-1])])
        wanted = engine_model.forward_streams(batch, harness.caches)
        torch.testing.assert_close(
            got, engine_model.compute_logits(engine_model.collapse(wanted)), atol=2e-4, rtol=1e-4
        )
        drafted = engine_model.mtp_forward(batch, harness.caches, wanted, torch.tensor(row[1:]))
        torch.testing.assert_close(got_mtp, engine_model.mtp_logits(drafted), atol=2e-4, rtol=1e-4)


def test_the_indexer_chooses_and_all_entries_can_be_seen(dense, rows):
    """Without the choice the result is another one: the test above would notice a forward that never chooses."""
    sparse = dense.logits(dense.streams(rows[:, :-1]))
    dense.is_sparse = False
    try:
        everything = dense.logits(dense.streams(rows[:, :-1]))
    finally:
        dense.is_sparse = True
    short = torch.arange(LENGTH) < 35  # up to 8 entries, all are kept
    apart = (sparse - everything).abs().amax(-1).view(2, LENGTH)
    assert apart[:, short].max() < 1e-4 and apart[:, ~short].max() > 1e-2


def test_every_tensor_gets_a_gradient(config, tensors, rows):
    weights = weights_of(config, tensors)
    parsed = DeepseekV4Config.from_dict(config)
    owners = {id(t if t._base is None else t._base): t for t in destinations(parsed, weights).values()}
    leaves = [t if t._base is None else t._base for t in owners.values()]
    leaves = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
    model = DenseV4(parsed, weights)
    streams = model.streams(rows[:, :-1])
    mtp = model.mtp_logits(model.mtp_streams(streams, rows[:, 1:]))
    (model.logits(streams).square().mean() + mtp.square().mean() + sum(model.index_losses)).backward()
    biases = {id(block.moe.bias) for block in [*weights.blocks, weights.mtp[0].block]}
    silent = [name for name, t in destinations(parsed, weights).items() if t.is_floating_point()
              and id(t) not in biases and not (t if t._base is None else t._base).grad.abs().sum() > 0]  # fmt: skip
    assert silent == []


def test_sinkhorn_and_its_gradient_equal_the_reference():
    raw = torch.randn(5, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, two = raw.clone().requires_grad_(), raw.clone().requires_grad_()
    wanted, got = reference.sinkhorn(one, 20, 1e-6), batched.sinkhorn(two, 20, 1e-6)
    pull = torch.randn(5, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (wanted * pull).sum().backward()
    (got * pull).sum().backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(two.grad, one.grad)
