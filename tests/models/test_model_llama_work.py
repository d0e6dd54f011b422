"""Parameters, FLOPs, bytes and cache groups as functions of the config, compared with what a model really holds."""

import pytest

from tests.tiny import llama_tensors, tiny_llama_config, write_tiny_llama
from tokenmill.core.cache_groups import GroupKind
from tokenmill.models import work
from tokenmill.models.groups import attention_groups
from tokenmill.models.llama_config import read_llama_config
from tokenmill.models.registry import load_model

SMOLLM2 = tiny_llama_config(
    vocab_size=49152,
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    intermediate_size=1536,
    max_model_len=8192,
    tie_word_embeddings=True,
)


def test_parameters_of_known_models():
    assert work.num_parameters(read_llama_config(SMOLLM2, "m")) == 134_515_008  # the published count
    for changes in ({}, {"architectures": ["Qwen2ForCausalLM"]}, {"architectures": ["Qwen3ForCausalLM"]}):
        config = tiny_llama_config(**changes)
        stored = sum(tensor.numel() for tensor in llama_tensors(config).values())
        assert work.num_parameters(read_llama_config(config, "m")) == stored


def test_step_flops_of_smollm2_are_two_per_weight_and_row():
    """Prefill of 512 tokens: 2 FLOPs per projection weight and row, one row of logits, and attention's triangle."""
    config = read_llama_config(SMOLLM2, "m")
    got = work.step_work(config, [512], [0], bytes_per_weight=2, bytes_per_cache_value=2)
    projections = 134_515_008 - 49152 * 576 - 61 * 576
    attention = 30 * 4 * 9 * 64 * (512 * 513 // 2)
    want = 2 * projections * 512 + 2 * 49152 * 576 + attention
    assert got.flops == pytest.approx(want, rel=0.01)  # norms, rotary and activation are below 1 %
    assert got.weight_bytes == pytest.approx(2 * (134_515_008 + 512 * 576), rel=1e-3)
    assert got.cache_bytes == 512 * 23_040


def test_cache_bytes_of_a_decode_are_the_contexts():
    config = read_llama_config(SMOLLM2, "m")
    got = work.step_work(config, [1] * 3, [9, 99, 299], bytes_per_weight=2, bytes_per_cache_value=2)
    assert got.cache_bytes == (10 + 100 + 300) * 23_040
    more = work.step_work(config, [1] * 4, [9, 99, 299, 0], bytes_per_weight=2, bytes_per_cache_value=2)
    assert more.flops > got.flops and more.weight_bytes >= got.weight_bytes


def test_windows_bound_what_is_read():
    config = read_llama_config(tiny_llama_config(architectures=["MistralForCausalLM"], sliding_window=64), "m")
    near, far = (work.step_work(config, [1], [n], bytes_per_weight=2, bytes_per_cache_value=2) for n in (100, 4000))
    assert near == far


def test_groups_describe_the_caches_that_the_model_allocates(tmp_path):
    folder = write_tiny_llama(
        tmp_path,
        architectures=["Qwen2ForCausalLM"],
        num_layers=5,
        use_sliding_window=True,
        sliding_window=32,
        max_window_layers=2,
    )
    model = load_model(folder, dtype="float32").model
    full, window = model.cache_groups(16)
    assert (full.name, full.kind, full.window_tokens, full.rebuild_tokens) == ("full", GroupKind.FULL, None, None)
    assert (window.name, window.kind, window.window_tokens) == ("window-32", GroupKind.SLIDING_WINDOW, 31)
    assert window.rebuild_tokens == 3 * 31, "three window layers"
    caches = model.allocate_caches({"full": 4, "window-32": 6}, 16)
    for group, num_blocks in ((full, 4), (window, 6)):
        tensors = caches[group.name]
        assert all(len(tensor) == num_blocks and not tensor.any() for tensor in tensors)
        assert sum(tensor.nbytes for tensor in tensors) == num_blocks * group.bytes_per_block
    assert len(caches["full"]) == 2 and len(caches["window-32"]) == 3


def test_a_llama_has_one_full_group():
    (group,) = attention_groups((None,) * 30, num_kv_heads=3, head_dim=64, block_size=16, bytes_per_value=2)
    assert (group.name, group.bytes_per_block) == ("full", 16 * 23_040)


def test_the_model_reports_work_in_its_own_dtype(tmp_path):
    folder = write_tiny_llama(tmp_path)
    wide, narrow = (load_model(folder, dtype=dtype).model.step_work([3], [5]) for dtype in ("float32", "bfloat16"))
    assert wide.flops == narrow.flops and wide.cache_bytes == 2 * narrow.cache_bytes
    assert wide.weight_bytes == 2 * narrow.weight_bytes
