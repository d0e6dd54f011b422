"""Sizes, FLOPs and cache bytes against published figures (within 1 %), and against the tensors themselves."""

from __future__ import annotations

import time

import pytest
import torch

from tests.deepseek_v4.tiny import v4_json
from tokenmill.core.cache_groups import bytes_per_token
from tokenmill.core.errors import ConfigError
from tokenmill.models.deepseek_v3 import work as baseline
from tokenmill.models.deepseek_v4 import groups, work
from tokenmill.models.deepseek_v4.builder import meta_model
from tokenmill.models.deepseek_v4.caches import allocate_caches
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.presets import flash, pro
from tokenmill.models.deepseek_v4.retention import retention_costs
from tokenmill.models.deepseek_v4.weights import allocate, count_parameters

K4, K128, M1 = 4096, 131072, 2**20
MIB = 2**20
CONFIGS = {"flash": flash(), "pro": pro()}
PACKED = ("fp8_e4m3", "fp4")


def near(value: float, rel: float = 0.01) -> object:
    return pytest.approx(value, rel=rel)


def formats(config: DeepseekV4Config, kv: str, index: str) -> groups.CacheFormats:
    return groups.cache_formats(config, "bfloat16", kv, index)


def test_parameters_of_the_released_models() -> None:
    for name, total, active, mtp in (("flash", 284.3, 13.27, 6.6), ("pro", 1573, 48.85, 25.8)):
        config = CONFIGS[name]
        assert work.trunk_parameters(config).total / 1e9 == near(total)
        assert work.trunk_parameters(config, active=True).total / 1e9 == near(active)
        assert work.mtp_parameters(config).total / 1e9 == near(mtp)
    assert work.mtp_parameters(flash(), active=True).total / 1e9 == near(0.85)
    assert work.mtp_parameters(pro(), active=True).total / 1e9 == near(1.8)
    assert work.attention_parameters(flash(), 0).total / 1e6 == near(107)
    assert work.attention_parameters(pro(), 0).total / 1e6 == near(300)
    assert work.trunk_parameters(flash()).experts / 1e9 == near(277.0)
    assert work.trunk_parameters(pro()).experts / 1e9 == near(1547)


@pytest.mark.parametrize("name", CONFIGS)
def test_full_size_models_build_on_the_meta_device_in_seconds(name: str) -> None:
    """The formulas of work.py count exactly the tensors that the model allocates."""
    config, start = CONFIGS[name], time.process_time()
    model = meta_model(config, num_mtp=1)
    assert time.process_time() - start < 10
    assert model.num_parameters == work.trunk_parameters(config).total + work.mtp_parameters(config).total


def test_formulas_count_the_tensors_of_odd_configs() -> None:
    for changes in ({}, {"compress_ratios": [128, 64, 32, 0]}, {"tie_word_embeddings": True}, {"hc_mult": 2}):
        config = DeepseekV4Config.from_dict(v4_json(**changes))
        weights = allocate(config, torch.float32, num_mtp=0, device="meta")
        assert count_parameters(weights) == work.trunk_parameters(config).total, changes


def test_flops_per_token() -> None:
    """Weights, core attention, indexer and total in GFLOP at 4k, 128k, 1M; the shares of V3.2."""
    table = {
        "flash": {K4: (26.5, 2.2, 0.4, 29.1), K128: (26.5, 4.8, 11.3, 42.6), M1: (26.5, 23.6, 90.2, 140)},
        "pro": {K4: (97.7, 10.4, 0.5, 109), K128: (97.7, 18.4, 16.1, 132), M1: (97.7, 76.7, 128.8, 303)},
    }
    for name, rows in table.items():
        config = CONFIGS[name]
        for context, (weights, attention, indexer, total) in rows.items():
            assert 2e-9 * work.trunk_parameters(config, active=True).total == near(weights)
            assert work.attention_flops(config, context) / 1e9 == near(attention, 0.02 if attention < 3 else 0.01)
            assert work.indexer_flops(config, context) / 1e9 == pytest.approx(indexer, abs=0.06, rel=0.01)
            assert work.token_flops(config, context) / 1e9 == near(total)
    for context, total in {K4: 113, K128: 240, M1: 1157}.items():
        assert baseline.token_flops(context) / 1e9 == near(total)
    assert work.token_flops(pro(), M1) / baseline.token_flops(M1) == pytest.approx(0.26, abs=0.005)
    assert work.token_flops(flash(), M1) / baseline.token_flops(M1) == pytest.approx(0.12, abs=0.005)


def test_bytes_per_token() -> None:
    table = {"flash": (6880, 3850, 3514), "pro": (9848, 5511, 5031)}
    dtypes = (("bf16", "bf16"), ("fp8_e4m3", "fp8_e4m3"), PACKED)
    for name, row in table.items():
        for pair, expected in zip(dtypes, row, strict=True):
            config = CONFIGS[name]
            declared = groups.cache_groups(config, formats(config, *pair), 128)
            assert bytes_per_token(declared, 128) == pytest.approx(expected, abs=0.5)
    assert baseline.cache_bytes(1, "bf16") == 85888 and baseline.cache_bytes(1) == 48068


def test_bytes_per_sequence() -> None:
    """The published table counts the compressor state of the reference code; ours is the online and minimal one."""
    table = {
        ("flash", "bf16", "bf16"): (43.9, 877, 6897, 17.0, 6.5),
        ("flash", *PACKED): (28.4, 454, 3529, 14.7, 4.2),
        ("pro", "bf16", "bf16"): (63.9, 1257, 9874, 25.5, 9.3),
        ("pro", *PACKED): (41.8, 651, 5054, 22.2, 6.0),
    }
    for (name, kv, index), (*totals, constant, ours) in table.items():
        config = CONFIGS[name]
        made = formats(config, kv, index)
        num_csa, num_hca = (len(config.layers_of(k)) for k in list(work.AttentionKind)[1:])
        reference_state = num_hca * 2 * 128 * 512 * 4 + num_csa * 8 * 2 * 2 * (512 + 128) * 4
        ours_state = groups.csa_state_bytes(config) + groups.hca_state_bytes(config)
        for context, total in zip((K4, K128, M1), totals, strict=True):
            live = groups.live_bytes(config, made, context)
            assert (sum(live.values()) - ours_state + reference_state) / MIB == near(total)
        window = live["window"]
        assert (window + reference_state) / MIB == near(constant)
        assert (window + ours_state) / MIB == near(ours)
    for context, bf16, fp8 in ((K4, 336, 188), (K128, 10736, 6009), (M1, 85888, 48068)):
        assert baseline.cache_bytes(context, "bf16") / MIB == near(bf16)
        assert baseline.cache_bytes(context) / MIB == near(fp8)
    share = sum(groups.live_bytes(pro(), formats(pro(), *PACKED), M1).values()) / baseline.cache_bytes(M1)
    assert share == pytest.approx(0.10, abs=0.01)


def test_checkpoint_bytes_of_the_baseline() -> None:
    assert baseline.checkpoint_bytes(baseline.RELEASED, baseline.RELEASED) / 1e9 == near(690)
    nvfp4 = baseline.checkpoint_bytes(baseline.NVFP4_EXPERTS, baseline.ALL_BF16) / 1e9
    assert 411 * 0.99 < nvfp4 < 415 * 1.01


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize("index", ["fp32", "bf16", "fp8_e4m3", "fp4"])
def test_declared_bytes_are_the_tensors_bytes(kv: str, index: str) -> None:
    """allocate_caches asserts it block by block; here also that every tensor starts with the physical block."""
    config = DeepseekV4Config.from_dict(v4_json(compress_ratios=[0, 4, 128, 32]))
    made = groups.cache_formats(config, "float32", kv, index)
    counts = {g.name: 3 + i for i, g in enumerate(groups.cache_groups(config, made, 128, 1))}
    for name, tensors in allocate_caches(config, made, counts, 128, 1).items():
        assert all(len(t) == counts[name] and not t.any() for t in tensors)


def test_groups_of_a_window_only_model() -> None:
    config = DeepseekV4Config.from_dict(v4_json(compress_ratios=[0, 0, 0, 0]))
    assert [g.name for g in groups.cache_groups(config, formats(config, "bf16", "bf16"), 128)] == ["window"]


def test_retention_policies() -> None:
    """Keeping everything costs bytes, recomputing n_layers x 127 tokens costs FLOPs, periodic lies between."""
    config = pro()
    made = formats(config, *PACKED)
    keep, periodic, recompute = retention_costs(config, made, 64 * 128, period_blocks=8)
    window = config.num_hidden_layers * 128 * 584
    assert keep.kept_bytes == 64 * (window + groups.csa_state_bytes(config)) and keep.hit_flops == 0
    assert periodic.kept_bytes == keep.kept_bytes // 8
    assert periodic.recomputed_tokens == 3.5 * 128
    assert recompute.kept_bytes == 0 and recompute.recomputed_tokens == 61 * 127
    assert recompute.hit_flops == near(61 * 127 * work.token_flops(config, 64 * 128))
    assert keep.entry_bytes == periodic.entry_bytes == recompute.entry_bytes == 64 * 128 * 5031.4375
    with pytest.raises(ConfigError, match="period_blocks=0"):
        retention_costs(config, made, 1000, period_blocks=0)


def test_step_work() -> None:
    """Additive where it should be: FLOPs of a decode step are those of its tokens, weights are read once."""
    config = flash()
    made = formats(config, *PACKED)
    one, two = (work.step_work(config, made, [1] * n, [K128 - 1] * n) for n in (1, 2))
    assert one.flops == near(work.token_flops(config, K128), 1e-3)
    assert two.flops == near(2 * one.flops, 1e-6) and two.cache_bytes == near(2 * one.cache_bytes, 1e-6)
    assert one.weight_bytes < two.weight_bytes < 2 * one.weight_bytes
    everything = work.RELEASED.of(work.trunk_parameters(config))
    many = work.step_work(config, made, [1] * 4096, [1] * 4096).weight_bytes
    assert many == near(everything) and many < everything
    assert work.step_work(config, made, [], []).flops == 0
    # At 1M the index keys dominate what a CSA layer reads: S/4 x 68 bytes = 17.8 MB.
    grown = work.cache_read_bytes(config, made, M1) - work.cache_read_bytes(config, made, M1 - 4096)
    assert grown == near(21 * 1024 * 68 + 20 * 32 * 584, 1e-6)
