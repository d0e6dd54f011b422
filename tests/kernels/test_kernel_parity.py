"""Fast kernels against their references: odd shapes, no rows, one row, both dtypes.

Bounds: float32 paths differ in summation order only, so a relative error of a few 1e-6 of the row's largest value.
bfloat16 has 8 bits: half a unit in the last place is 2^-9 of a value, and an op may round once or twice more than the
reference, which computes in float32 and rounds once.
"""

import itertools

import pytest
import torch

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.embedding import cpu as embedding_cpu
from tokenmill.kernels.embedding import reference as embedding_reference
from tokenmill.kernels.linear import cpu as linear_cpu
from tokenmill.kernels.linear.cpu import PackedLinear, PlainLinear, make
from tokenmill.kernels.linear.reference import ReferenceLinear
from tokenmill.kernels.rms_norm import cpu as rms_norm_cpu
from tokenmill.kernels.rms_norm import reference as rms_norm_reference
from tokenmill.kernels.rope import cpu as rope_cpu
from tokenmill.kernels.rope import reference as rope_reference
from tokenmill.kernels.rope.api import RotaryTable
from tokenmill.kernels.rope.frequencies import plain
from tokenmill.kernels.silu_mul import cpu as silu_mul_cpu
from tokenmill.kernels.silu_mul import reference as silu_mul_reference

DTYPES = [torch.float32, torch.bfloat16]
ROWS = [0, 1, 2, 7, 33]


def assert_near(got, want, *, roundings=1):
    """`roundings`: to bfloat16, of values as large as the largest."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if got.numel():
        bound = roundings * 2.0**-8 if got.dtype == torch.bfloat16 else 1e-5
        error = (got.float() - want.float()).abs()
        worst = int(error.argmax())
        limit = bound * float(want.float().abs().max())
        assert error.max() <= limit, f"flat index {worst}: {got.flatten()[worst]} instead of {want.flatten()[worst]}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(576, 960), (1536, 576), (37, 53), (1, 3), (129, 1)], ids=str)
@pytest.mark.parametrize("kernel", [PackedLinear, PlainLinear], ids=["packed", "plain"])
def test_linear(kernel, shape, dtype, generator):
    inner, outer = shape
    weight, bias = (torch.randn(s, generator=generator).to(dtype) for s in ((outer, inner), (outer,)))
    for rows, has_bias, has_add in itertools.product(ROWS, (False, True), (False, True)):
        x = torch.randn(rows, inner, generator=generator).to(dtype)
        add = torch.randn(rows, outer, generator=generator).to(dtype) if has_add else None
        before = None if add is None else add.clone()
        layers = [make_layer(weight, bias if has_bias else None) for make_layer in (kernel, ReferenceLinear)]
        # The plain layer rounds the product before it adds the residual: one rounding more.
        assert_near(layers[0](x, add), layers[1](x, add), roundings=2)
        assert add is None or torch.equal(add, before), "the residual is not to be changed"


def test_linear_takes_the_packed_path_where_it_can(monkeypatch):
    weight = torch.ones(2, 3)
    assert isinstance(make(weight), PackedLinear if linear_cpu.can_pack(torch.float32) else PlainLinear)
    assert not linear_cpu.can_pack(torch.float16)
    monkeypatch.setattr(linear_cpu, "can_pack", lambda dtype: False)
    layer = make(weight)
    assert isinstance(layer, PlainLinear) and (layer.in_features, layer.out_features) == (3, 2)


@pytest.mark.parametrize("kernel", [ReferenceLinear, make], ids=["reference", "cpu"])
def test_linear_refuses_a_bias_of_another_size(kernel):
    with pytest.raises(CheckpointError, match=r"weight \(2, 3\) with bias \(3,\)"):
        kernel(torch.zeros(2, 3), torch.zeros(3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 64), (1, 576), (33, 577), (5, 4, 128), (3, 1)], ids=str)
def test_rms_norm(shape, dtype, generator):
    x = (torch.randn(shape, generator=generator) * 3).to(dtype)
    weight = torch.rand(shape[-1], generator=generator).to(dtype)
    assert_near(rms_norm_cpu.rms_norm(x, weight, 1e-5), rms_norm_reference.rms_norm(x, weight, 1e-5), roundings=2)


def test_rms_norm_of_zeros_is_zero():
    assert not rms_norm_reference.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", [(0, 4, 64), (1, 12, 64), (33, 3, 128), (7, 1, 2)], ids=str)
def test_rope(shape, interleaved, dtype, generator):
    x = torch.randn(shape, generator=generator).to(dtype)
    cos, sin = RotaryTable(plain(shape[-1], 10000.0)).rows(torch.arange(shape[0]) * 17)
    got = rope_cpu.rope(x, cos, sin, interleaved=interleaved)
    assert_near(got, rope_reference.rope(x, cos, sin, interleaved=interleaved))


@pytest.mark.parametrize("kernel", [rope_cpu.rope, rope_reference.rope], ids=["cpu", "reference"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_and_back(kernel, interleaved, generator):
    """Against complex multiplication; the inverse is the same call with -sin."""
    x = torch.randn(5, 2, 6, generator=generator)
    positions = torch.tensor([0, 1, 2, 100, 4095])
    cos, sin = RotaryTable(plain(6, 10000.0)).rows(positions)
    turned = kernel(x, cos, sin, interleaved=interleaved)
    pairs = (lambda t: (t[..., 0::2], t[..., 1::2])) if interleaved else (lambda t: t.chunk(2, -1))
    angle = positions.double().view(-1, 1, 1) * torch.tensor([1.0, 10000 ** (-2 / 6), 10000 ** (-4 / 6)])
    want = torch.complex(*[p.double() for p in pairs(x)]) * torch.polar(torch.ones_like(angle), angle)
    got = torch.complex(*[p.double() for p in pairs(turned)])
    torch.testing.assert_close(got, want, atol=2e-3, rtol=0)  # float32 angles at position 4095: 4095 * 2^-24 rad
    torch.testing.assert_close(kernel(turned, cos, -sin, interleaved=interleaved), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("limit", [None, 1.5])
@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (33, 2 * 129)], ids=str)
def test_silu_mul(shape, limit, dtype, generator):
    """S08: the clamp is in both paths; inputs reach far beyond it."""
    x = (torch.randn(shape, generator=generator) * 6).to(dtype)
    got = silu_mul_cpu.silu_mul(x, limit)
    assert_near(got, silu_mul_reference.silu_mul(x, limit), roundings=2)
    if limit is not None and got.numel():
        assert got.float().abs().max() <= limit * limit * (1 + 2**-7)


def test_silu_mul_clamps_the_gate_from_above_only():
    gate_up = torch.tensor([[-9.0, 9.0, 2.0, -9.0]])  # gates -9 and 9, ups 2 and -9
    gates = torch.tensor([-9.0, 3.0])
    want = gates * torch.sigmoid(gates) * torch.tensor([2.0, -3.0])
    for kernel in (silu_mul_cpu.silu_mul, silu_mul_reference.silu_mul):
        torch.testing.assert_close(kernel(gate_up, 3.0)[0], want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_is_exact(dtype, generator):
    table = torch.randn(11, 5, generator=generator).to(dtype)
    ids = torch.tensor([10, 0, 0, 3])
    for kernel in (embedding_cpu.embedding, embedding_reference.embedding):
        assert torch.equal(kernel(table, ids), torch.stack([table[i] for i in ids]))
        assert kernel(table, ids[:0]).shape == (0, 5)
        with pytest.raises(IndexError):
            kernel(table, torch.tensor([11]))
