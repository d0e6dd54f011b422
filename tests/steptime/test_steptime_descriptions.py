"""Work descriptions against published sizes, and against what the models report of themselves step by step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.models import work as llama_work
from tokenmill.models.deepseek_v3 import work as deepseek_v3
from tokenmill.models.deepseek_v4 import presets
from tokenmill.models.deepseek_v4 import work as deepseek_v4
from tokenmill.models.deepseek_v4.groups import cache_formats, csa_state_bytes, hca_state_bytes
from tokenmill.models.llama_config import read_llama_config
from tokenmill.models.llama_presets import PRESETS
from tokenmill.models.priced import PRICED, describe_model

K8, K128, M1 = 8192, 131072, 2**20
PRO, FLASH = describe_model("deepseek-v4-pro"), describe_model("DeepSeek_V4_Flash")


def near(value: float, rel: float = 0.01) -> object:
    return pytest.approx(value, rel=rel)


def total_params(name: str) -> float:
    work = describe_model(name, "bf16")
    return (work.weight_bytes - work.draft_bytes) / 2


def test_parameters() -> None:
    for name, total, active in (
        ("deepseek-v4-pro", 1573, 49.0),
        ("deepseek-v4-flash", 284.4, 13.3),
        ("deepseek-r1", 671, 36.7),
        ("gpt-oss-120b", 116.8, 5.13),
        ("llama-3.1-8b", 8.03, 7.5),
        ("llama-3.1-70b", 70.6, 69.5),
        ("smollm2", 0.1345, 0.1345),
    ):
        assert total_params(name) / 1e9 == near(total), name
        assert describe_model(name).active_params / 1e9 == near(active), name


def test_stored_bytes() -> None:
    assert PRO.expert_bytes / 1e9 == near(822)
    assert describe_model("deepseek-v4-pro", "nvfp4").expert_bytes / 1e9 == near(870)
    assert FLASH.expert_bytes / 1e9 == near(147)
    assert describe_model("deepseek-v3.2").weight_bytes / 1e9 == near(690)
    assert describe_model("gpt-oss-120b").weight_bytes / 1e9 == near(65.2, 0.02)


def test_cache_of_a_user() -> None:
    """Compressor states are counted here and not in the published formula: 1.5 MB of Pro, 1 MB of Flash."""
    for work, at in ((PRO, {K8: 46e6, K128: 664e6, M1: 5.3e9}), (FLASH, {K8: 32e6, K128: 465e6, M1: 3.7e9})):
        for context, expected in at.items():
            assert work.kv_bytes(context) == near(expected, 0.04 if context == K8 else 0.01)
    assert PRO.kv_bytes(M1) / describe_model("deepseek-v3.2").kv_bytes(M1) == near(0.105)


def test_bytes_read_per_decode_step() -> None:
    for context, expected in {K8: 28e6, K128: 108e6, M1: 706e6}.items():
        assert PRO.read_bytes(context) == near(expected)


def test_flops_per_token() -> None:
    assert 2e-9 * PRO.active_params == near(98.0) and 2e-9 * FLASH.active_params == near(26.7)
    for context, expected in {K8: 11.6, K128: 34.5, M1: 205.5}.items():
        assert PRO.attention_flops(context) / 1e9 == near(expected)
    assert PRO.token_flops(M1) / 1e9 == near(303.5)
    assert PRO.token_flops(M1) / describe_model("deepseek-v3.2").token_flops(M1) == near(0.262)


@pytest.mark.parametrize("preset", ["flash", "pro"])
@pytest.mark.parametrize("context", [1, 100, 128, 129, 5000, 10**6])
def test_descriptions_say_what_the_model_says_of_its_steps(preset: str, context: int) -> None:
    config = getattr(presets, preset)()
    formats = cache_formats(config, "bfloat16", "fp8_e4m3", "fp4")
    work = deepseek_v4.describe(config, formats=formats)
    assert work.token_flops(context) == pytest.approx(deepseek_v4.token_flops(config, context), rel=1e-9)
    states = csa_state_bytes(config) + hca_state_bytes(config)
    own = deepseek_v4.cache_read_bytes(config, formats, context) - states
    assert work.read_bytes(context) == pytest.approx(own, rel=2e-3, abs=100 * work.num_layers)  # whole keys there
    read = deepseek_v4.step_weight_bytes(config, 7)
    ours = work.dense_bytes + work.head_bytes + work.expert_bytes * work.expert_hit(7)
    assert ours == pytest.approx(read, rel=1e-3)


def test_baseline_and_llama_say_the_same_of_themselves() -> None:
    for context in (1, 2048, 10**6):
        ours = describe_model("deepseek-v3.2").token_flops(context)
        assert ours == pytest.approx(deepseek_v3.token_flops(context), rel=1e-3)
    config = read_llama_config(PRESETS["llama-3.1-8b"], "test")
    work = llama_work.describe(config)
    own = llama_work.step_work(config, [1], [4095], bytes_per_weight=2, bytes_per_cache_value=2)
    assert work.token_flops(4096) == pytest.approx(own.flops, rel=2e-3)  # norms and rotations are left out
    assert work.read_bytes(4096) == own.cache_bytes


def test_a_config_file_can_be_priced(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(presets.FLASH_JSON))
    work = describe_model(str(folder))
    assert work.name == "mine" and work.active_params == FLASH.active_params and work.expert_bytes == FLASH.expert_bytes


def test_unknown_models_and_precisions_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'deepseek-v4-pro'"):
        describe_model("deepseek-v4-pr0")
    for name in PRICED:
        with pytest.raises(ConfigError, match="precision 'fp3' is not possible"):
            describe_model(name, "fp3")
