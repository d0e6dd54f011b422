"""The paths that are not float32 reference: bounded against it, in the mean rather than at the worst token.

A flipped expert or entry moves a logit by units on these random models, so the worst difference says nothing.
"""

from __future__ import annotations

import pytest
import torch

from tests.deepseek_v4.conftest import Golden, load_golden_model
from tests.deepseek_v4.harness import Harness
from tests.deepseek_v4.tiny import random_tensors, v4_json, write_checkpoint
from tokenmill.models.deepseek_v4.caches import fill_synthetic
from tokenmill.models.deepseek_v4.groups import live_bytes
from tokenmill.models.registry import load_model

LENGTH = 129  # before many choices could flip


def compare(
    golden: Golden, dtype: str, *, deterministic: bool, backend: str = "auto", **extra: str
) -> tuple[float, float]:
    """(mean absolute difference of logits, share of equal argmax) against the golden's float32 logits."""
    model = load_model(golden.path, dtype=dtype, deterministic=deterministic, backend=backend, extra=extra).model
    harness = Harness(model, num_blocks=4)
    logits = harness.prefill(harness.start(), golden.ids(LENGTH))
    want = golden.reference[f"prompt_{LENGTH}.logits"]
    rows = golden.reference[f"prompt_{LENGTH}.rows"].long()
    same = logits.argmax(-1) == golden.reference[f"prompt_{LENGTH}.argmax"]
    return (logits[rows] - want).abs().mean().item(), same.float().mean().item()


def test_golden_on_the_plain_cpu_path(golden: Golden) -> None:
    difference, same = compare(golden, "float32", deterministic=False, backend="cpu")
    assert difference < 1e-4 and same == 1.0


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_golden_in_bf16(golden: Golden, backend: str) -> None:
    difference, same = compare(golden, "bfloat16", deterministic=False, backend=backend)
    assert difference < 0.4 and same > 0.7, (difference, same)


@pytest.mark.parametrize(
    ("kv", "index", "most"), [("bf16", "bf16", 0.15), ("fp8_e4m3", "fp8_e4m3", 0.5), ("fp8_e4m3", "fp4", 0.6)]
)
def test_golden_with_small_caches(golden: Golden, kv: str, index: str, most: float) -> None:
    """Logits (standard deviation 2) of random models under rounded caches."""
    extra = {"kv_cache_dtype": kv, "index_cache_dtype": index}
    difference, same = compare(golden, "float32", deterministic=True, **extra)
    assert difference < most and same > 0.6, (difference, same)


def test_decode_deep_in_a_synthetic_context(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A step at 100,000 tokens over filled caches runs, is finite, and its live bytes grow by the entries alone."""
    config = v4_json(max_position_embeddings=2**20, num_nextn_predict_layers=0, compress_ratios=[0, 4, 128, 4])
    folder = write_checkpoint(tmp_path_factory.mktemp("deep"), config, random_tensors(config, 3, mtp=False))
    model = load_golden_model(folder, (("index_cache_dtype", "fp4"), ("kv_cache_dtype", "fp8_e4m3")))
    context = 100_000
    harness = Harness(model, num_blocks=context // 128 + 2)
    seq = harness.start()
    fill_synthetic(harness.caches, model.config, model.formats)
    seq.num_computed = context
    harness._reserve(seq, context)
    logits = harness.step([(seq, [5])])[0]
    assert bool(torch.isfinite(logits).all())
    live = live_bytes(model.config, model.formats, context)
    row = model.formats.kv.row_bytes
    assert live["csa"] == 2 * (context // 4) * row and live["hca"] == context // 128 * row
    assert live["window"] == 4 * 64 * row
