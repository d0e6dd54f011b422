"""Scaled rotary frequencies: against transformers, and at the edges of their formulas."""

import math

import pytest
import torch

from tokenmill.kernels.rope import frequencies
from tokenmill.kernels.rope.api import RotaryTable

CASES = {
    "plain": (lambda: frequencies.plain(64, 1e4), {"rope_type": "default"}),
    "linear": (lambda: frequencies.linear(64, 1e4, factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (
        lambda: frequencies.llama3(
            64, 1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=1024
        ),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
    "yarn": (
        lambda: frequencies.yarn(64, 1e4, factor=4.0, original_max_len=2048),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    ),
    "yarn untruncated": (
        lambda: frequencies.yarn(
            64, 1e4, factor=40.0, original_max_len=4096, beta_fast=24, beta_slow=2, magnitude=1.3, truncate=False
        ),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "attention_factor": 1.3,
            "truncate": False,
        },
    ),
}


@pytest.mark.requires_transformers
@pytest.mark.parametrize("name", CASES)
def test_frequencies_equal_transformers(name):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    make, parameters = CASES[name]
    rotary = make()
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 1e4, **parameters},
    )
    if name == "plain":
        want, magnitude = 1e4 ** -(torch.arange(0, 64, 2) / 64), 1.0
    else:
        want, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
    torch.testing.assert_close(torch.tensor(rotary.frequencies), want, rtol=1e-5, atol=0)  # theirs is float32
    assert rotary.magnitude == pytest.approx(magnitude)


def test_yarn_with_a_ramp_of_no_width_is_a_step():
    rotary = frequencies.yarn(8, 1e4, factor=2.0, original_max_len=64, beta_fast=1.0, beta_slow=1.0, truncate=False)
    kept = [f / p for f, p in zip(rotary.frequencies, frequencies.plain(8, 1e4).frequencies, strict=True)]
    assert all(share == pytest.approx(1.0) or share == pytest.approx(0.5) for share in kept)


def test_yarn_magnitude_is_one_without_extension():
    assert frequencies.yarn_magnitude(1.0) == 1.0
    assert frequencies.yarn_magnitude(4.0) == pytest.approx(0.1 * math.log(4) + 1)


def test_divided_needs_one_divisor_per_pair():
    rotary = frequencies.divided(4, 1e4, divisors=[1.0, 8.0])
    assert rotary.frequencies == pytest.approx((1.0, 1e4**-0.5 / 8))
    with pytest.raises(ValueError):
        frequencies.divided(4, 1e4, divisors=[1.0])


def test_table_rows_hold_the_magnitude():
    cos, sin = RotaryTable(frequencies.Rotary((1.0, 0.5), magnitude=2.0)).rows(torch.tensor([0, 3]))
    torch.testing.assert_close(cos, 2 * torch.tensor([[1.0, 1.0], [math.cos(3), math.cos(1.5)]]))
    torch.testing.assert_close(sin, 2 * torch.tensor([[0.0, 0.0], [math.sin(3), math.sin(1.5)]]))
