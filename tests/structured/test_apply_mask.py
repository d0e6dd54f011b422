"""Packed masks on logits: the quick form equals the reference, for every size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenmill.engine.structured.apply import apply_mask, apply_mask_reference, apply_masks, unpack_mask


def _mask(num_words: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, num_words, dtype=np.uint32)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 269, 1000])
@pytest.mark.parametrize("extra_words", [-1, 0, 2])
def test_quick_equals_reference(vocab_size: int, extra_words: int) -> None:
    packed = _mask(max(0, (vocab_size + 31) // 32 + extra_words), vocab_size)
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1))
    quick, reference = logits.clone(), logits.clone()
    apply_mask(quick, packed)
    apply_mask_reference(reference, packed)
    assert torch.equal(quick, reference)
    kept = unpack_mask(packed, vocab_size)
    assert torch.equal(quick[kept], logits[kept]) and bool((quick[~kept] == -torch.inf).all())


def test_rows_without_a_mask_stay() -> None:
    logits = torch.randn(4, 70, generator=torch.Generator().manual_seed(2))
    packed = {2: _mask(3, 0), 0: _mask(3, 1)}
    got, expected = logits.clone(), logits.clone()
    apply_masks(got, packed)
    for row, mask in packed.items():
        apply_mask_reference(expected[row], mask)
    assert torch.equal(got, expected)
    apply_masks(got, {})
    assert torch.equal(got, expected)
