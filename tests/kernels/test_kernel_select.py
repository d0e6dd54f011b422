"""The choice of implementations is complete, visible and explained; work functions run without torch."""

import subprocess
import sys

import torch

from tokenmill.core.work import Work
from tokenmill.kernels.attention.work import attention_work, seen_pairs
from tokenmill.kernels.linear import cpu as linear_cpu
from tokenmill.kernels.linear.work import linear_work
from tokenmill.kernels.select import OPS, select_kernels


def test_every_op_has_a_choice_with_a_reason():
    for deterministic, name in ((True, "reference"), (False, "cpu")):
        choices = select_kernels(deterministic=deterministic, backend="auto" if deterministic else "cpu").choices
        assert set(choices) == set(OPS)
        assert {choice.name for choice in choices.values()} == {name}
        assert all(choice.reason for choice in choices.values())


def test_the_reason_says_when_weights_are_not_packed(monkeypatch):
    packed = select_kernels(deterministic=False, dtype=torch.float32).choices["linear"].reason
    assert "packed at load" in packed
    monkeypatch.setattr(linear_cpu, "can_pack", lambda dtype: False)
    choice = select_kernels(deterministic=False, backend="cpu").choices["linear"]
    assert "does not multiply packed bfloat16" in choice.reason


def test_work_functions_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import tokenmill.kernels.attention.work, tokenmill.kernels.embedding.work, tokenmill.kernels.linear.work\n"
        "import tokenmill.kernels.rms_norm.work, tokenmill.kernels.rope.work, tokenmill.kernels.silu_mul.work\n"
        "import tokenmill.models.work, tokenmill.models.groups, tokenmill.models.llama_config\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_linear_work_reads_weights_once():
    assert linear_work(7, 3, 5, 2) == Work(flops=2 * 7 * 3 * 5, weight_bytes=30)


def test_seen_pairs_counts_what_a_mask_shows():
    for query_len in (0, 1, 3, 10):
        for context_len in (0, 1, 5, 20):
            for window in (None, 1, 4, 12, 100):
                seen = [min(p + 1, window or p + 1) for p in range(context_len, context_len + query_len)]
                assert seen_pairs(query_len, context_len, window) == sum(seen), (query_len, context_len, window)


def test_attention_work_of_a_window_reads_only_the_window():
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "cache_bytes_per_value": 2}
    assert attention_work(1, 99, window=10, **shape) == Work(flops=4 * 4 * 8 * 10, cache_bytes=10 * 2 * 2 * 8 * 2)
    assert attention_work(1, 99, **shape) == Work(flops=4 * 4 * 8 * 100, cache_bytes=100 * 2 * 2 * 8 * 2)
    assert attention_work(0, 99, **shape) == Work()
