"""DeepSeek V4 on the C kernels: bounded against the torch implementation, exact in everything that is bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.deepseek_v4.conftest import Golden
from tests.deepseek_v4.harness import Harness
from tests.deepseek_v4.test_v4_equivalence import run_ragged, tokens
from tests.deepseek_v4.test_v4_goldens import same_bits
from tests.deepseek_v4.test_v4_rollback import AROUND, check_rollbacks
from tests.deepseek_v4.tiny import random_tensors, v4_json, write_checkpoint
from tests.deepseek_v4.tiny import rounded as as_bf16
from tokenmill.core.errors import ConfigError
from tokenmill.kernels import invariant
from tokenmill.kernels.moe import reference as moe
from tokenmill.kernels.moe.api import Routing
from tokenmill.kernels.native.library import load_library
from tokenmill.kernels.select import Kernels
from tokenmill.models import registry
from tokenmill.models.deepseek_v4 import attention, block
from tokenmill.models.deepseek_v4.model import DeepseekV4, Trace
from tokenmill.models.deepseek_v4.native import NativeDeepseekV4
from tokenmill.models.registry import load_model

FORMATS = [("bf16", "bf16"), ("fp32", "fp32"), ("fp8_e4m3", "fp4"), ("fp8_e4m3", "fp8_e4m3")]
CONFIG = v4_json(compress_ratios=[0, 4, 32, 4, 128, 0], num_hidden_layers=5, index_head_dim=24, q_lora_rank=40)


def load_native(folder: Path, **extra: str) -> NativeDeepseekV4:
    model = load_model(folder, dtype="bfloat16", backend="native", extra={"mtp": "auto", **extra}).model
    assert isinstance(model, NativeDeepseekV4)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("v4") / "tiny", CONFIG, random_tensors(CONFIG, 12))


@pytest.fixture(scope="module", params=FORMATS, ids=["-".join(pair) for pair in FORMATS])
def native(request: pytest.FixtureRequest, folder: Path) -> NativeDeepseekV4:
    kv, index = request.param
    return load_native(folder, kv_cache_dtype=kv, index_cache_dtype=index)


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the float32 reference round what the C kernels round: inputs of packed products, to bf16."""

    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().float()

    class Linear:
        def __init__(self, weight: Tensor) -> None:
            self._weight = rounded(weight)

        def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
            return invariant.matmul(rounded(x), self._weight)

    def experts(x: Tensor, routing: Routing, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
        out = torch.zeros_like(x)
        rows_of, weights_of = moe.group_by_expert(routing, len(w13))
        for e, rows in enumerate(rows_of):
            if len(rows):
                hidden = moe.silu_mul(invariant.matmul(rounded(x[rows]), rounded(w13[e])), limit)
                out.index_add_(0, rows, invariant.matmul(rounded(hidden), rounded(w2[e])) * weights_of[e][:, None])
        return out

    grouped = attention.grouped_linear
    monkeypatch.setattr(attention, "grouped_linear", lambda x, w: grouped(rounded(x), rounded(w)))
    make_moe = block.MoE.__init__

    def make_rounding_moe(self: block.MoE, *args: Any) -> None:
        *args, ops = args
        make_moe(self, *args, replace(ops, experts=experts))

    monkeypatch.setattr(block.MoE, "__init__", make_rounding_moe)
    select = registry.select_kernels

    def select_rounding(*, deterministic: bool, **settings: Any) -> Kernels:
        kernels = select(deterministic=deterministic, **settings)
        return replace(kernels, linear=lambda weight, bias=None: Linear(weight)) if deterministic else kernels

    monkeypatch.setattr(registry, "select_kernels", select_rounding)


@pytest.mark.parametrize(("kv", "index"), FORMATS)
@pytest.mark.parametrize("ratio", [0, 4, 32, 128])
def test_each_kind_of_layer_equals_the_rounding_reference(
    tmp_path: Path, rounding: None, ratio: int, kv: str, index: str
) -> None:
    """A model of one layer, streams and choices. Nearly all values agree to float32; where a sum in another order
    makes a rounding fall the other way, a row moves by a bf16 step."""
    config = CONFIG | {"num_hidden_layers": 1, "compress_ratios": [ratio], "num_nextn_predict_layers": 0}
    config |= {"num_hash_layers": ratio // 128}
    folder = write_checkpoint(tmp_path, config, as_bf16(random_tensors(config, ratio)))
    extra = {"kv_cache_dtype": kv, "index_cache_dtype": index}
    reference = load_model(folder, dtype="float32", deterministic=True, extra={"mtp": "auto", **extra}).model
    traces = []
    for one in (reference, load_native(folder, **extra)):
        assert isinstance(one, DeepseekV4 | NativeDeepseekV4)
        harness, trace = Harness(one, num_blocks=4), Trace()
        one.forward_streams(harness.batch([(harness.start(), tokens(300))]), harness.caches, trace)
        traces.append(trace)
    difference = (traces[0].streams[0] - traces[1].streams[0]).abs()
    assert difference.median() < 1e-5 and difference.mean() < 2e-3, (difference.median(), difference.mean())
    if ratio == 4:
        same = (traces[0].chosen[0] == traces[1].chosen[0]).float().mean()
        assert same > 0.99, same


def test_golden_native_stays_near_float32(golden: Golden) -> None:
    model = load_native(golden.path)
    harness = Harness(model, num_blocks=4)
    logits = harness.prefill(harness.start(), golden.ids(129))
    same = logits.argmax(-1) == golden.reference["prompt_129.argmax"]
    assert same.float().mean() > 0.7, same.float().mean()


def test_golden_native_mtp(golden: Golden) -> None:
    """MTP from native streams, whole and in chunks to the bit; near the float32 logits."""
    model = load_native(golden.path)
    ids, results = golden.ids(129), []
    for chunk in (128, 5):
        harness = Harness(model, num_blocks=4)
        seq, parts = harness.start(), []
        for i in range(0, 128, chunk):
            here = ids[i : min(i + chunk, 128)]
            batch = harness.batch([(seq, here)])
            streams = model.forward_streams(batch, harness.caches)
            next_ids = torch.tensor(ids[i + 1 : i + 1 + len(here)])
            parts.append(model.mtp_logits(model.mtp_forward(batch, harness.caches, streams, next_ids)))
            seq.num_computed += len(here)
        results.append(torch.cat(parts))
    want = golden.reference["mtp_129.logits"]
    assert (results[0][-len(want) :] - want).abs().mean() < 0.5
    assert same_bits(*results)


def test_ragged_batches_equal_solo_runs(native: NativeDeepseekV4) -> None:
    harness = Harness(native)
    prompts = [tokens(n, seed) for seed, n in enumerate((1, 4, 9, 127, 129, 300))]
    solo = [harness.prefill(harness.start(), prompt) for prompt in prompts]
    for got, want in zip(run_ragged(Harness(native, seed=1), prompts, seed=2), solo, strict=True):
        assert same_bits(got, want)


def test_warm_rebuilt_and_far(native: NativeDeepseekV4) -> None:
    """Hits at block boundaries, windows rebuilt without touching the entries, decode beyond many tiles."""
    ids = tokens(1100, 3)
    harness = Harness(native, keeps_windows=True)
    base = harness.start()
    want = harness.prefill(base, ids)
    assert same_bits(harness.prefill(harness.fork(base, 128), ids[128:140]), want[128:140])
    assert same_bits(harness.prefill(harness.fork(base, 1024), ids[1024:1030], 1), want[1024:1030])
    boundary, resume = 1024, 1024 - 512
    assert max(g.rebuild_tokens or 0 for g in harness.groups if g.is_required) <= boundary - resume
    names = ("csa", "hca", "indexer")
    entries = [cache.clone() for name in names for cache in harness.caches[name]]
    warm = harness.rebuild_fork(base, boundary, resume)
    for start in range(resume, boundary, 100):
        harness.step([(warm, ids[start : min(start + 100, boundary)])], protected=[boundary])
    after = [cache for name in names for cache in harness.caches[name]]
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(entries, after, strict=True))
    assert same_bits(harness.step([(warm, ids[boundary:])], protected=[boundary])[0], want[boundary:])


def test_rollback_at_every_position(native: NativeDeepseekV4) -> None:
    check_rollbacks(native, tokens(290, 7), AROUND)


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_other_instruction_sets(folder: Path, monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    """Plain C beside every vector path: batch-invariant as well, and near the build for this CPU."""
    ids = tokens(140)
    here = Harness(load_native(folder))
    want = here.prefill(here.start(), ids)
    monkeypatch.setenv("TOKENMILL_CPU_ISA", isa)
    load_library.cache_clear()
    try:
        harness = Harness(load_native(folder))
    finally:
        load_library.cache_clear()
    got = harness.prefill(harness.start(), ids)
    assert same_bits(harness.prefill(harness.start(), ids, 9), got)
    assert (got - want).abs().mean() < 0.1


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_quantised_weights(folder: Path, weight_format: str) -> None:
    """Weights in few bits: near the bf16 logits in the mean, batch-invariant all the same."""
    model = load_model(folder, dtype="bfloat16", weight_format=weight_format).model
    assert isinstance(model, NativeDeepseekV4)
    harness, ids = Harness(model), tokens(100)
    got = harness.prefill(harness.start(), ids)
    assert same_bits(harness.prefill(harness.start(), ids, 7), got)
    plain = Harness(load_native(folder))
    want = plain.prefill(plain.start(), ids)
    error = (got - want).norm() / want.norm()
    assert error < (0.35 if weight_format == "int8" else 1.0), error


def test_threads_change_no_bit(folder: Path) -> None:
    """Few rows and many heads are split over threads; the pool of this process has one or more."""
    model = load_native(folder)
    harness, ids = Harness(model), tokens(150)
    want = harness.prefill(harness.start(), ids)
    got = harness.prefill(harness.start(), ids, 1)
    assert same_bits(got, want)


def test_what_native_kernels_cannot_serve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = v4_json(head_dim=24)
    folder = write_checkpoint(tmp_path, config, random_tensors(config))
    model = load_model(folder, dtype="bfloat16").model
    assert isinstance(model, DeepseekV4) and "head_dim 24 is not a multiple of 16" in caplog.text
    with pytest.raises(ConfigError, match="int8 weights need the native kernels; not for this model: head_dim 24"):
        load_model(folder, dtype="bfloat16", weight_format="int8")


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
