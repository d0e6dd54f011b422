"""Quick de-quantisers beside those of the gguf package: the same numbers, bit for bit."""

import numpy as np
import pytest

from tokenmill.models.gguf_blocks import QUICK, dequantise_quick

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("kind", QUICK)
@pytest.mark.parametrize("shape", [(1, 32), (37, 576), (16, 64)])
def test_as_the_package(kind, shape):
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    rows = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    out = np.empty(shape, np.float32)
    assert dequantise_quick(kind, rows, out)
    np.testing.assert_array_equal(out, gguf.dequantize(rows, gguf.GGMLQuantizationType[kind]))


def test_other_types_are_left_to_the_package():
    assert not dequantise_quick("Q6_K", np.empty((1, 210), np.uint8), np.empty((1, 256), np.float32))
