"""Tiny checkpoints for the model tests."""

import pytest
import torch

from tests.tiny import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """Grouped heads, a Llama 3 rotary rule, an untied head."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("tiny-llama"),
        num_heads=6,
        num_kv_heads=2,
        hidden_size=96,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    )


@pytest.fixture
def token_ids():
    return torch.randint(0, 256, (150,), generator=torch.Generator().manual_seed(3)).tolist()
