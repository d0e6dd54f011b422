"""Codes and scales against tables written out here: every value, every midpoint, both ends.

Bug classes: rounding that is not to nearest even, a wrap beyond the largest code, NaN that becomes a number.
"""

import itertools
from fractions import Fraction

import pytest
import torch

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.quantized.packed import SCHEMES
from tokenmill.kernels.quantized.rounding import POSSIBLE, quantize, to_e4m3

E2M1 = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]


def e4m3_table():
    """Positive codes 0..126: 4 bits of exponent with bias 7, 3 of mantissa (OCP FP8, 2023, table 1)."""
    values = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        values.append(
            Fraction(mantissa, 8) / 64 if exponent == 0 else Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)
        )
    return values


def nearest(table, x):
    """Index of the nearest entry of an ascending table; a tie goes to the even index; beyond the end, the end."""
    return min(range(len(table)), key=lambda i: (abs(table[i] - x), i % 2))


def points(table):
    """Every value, every midpoint, and float32's neighbours of both; and beyond the end."""
    exact = [float(v) for v in table] + [float((a + b) / 2) for a, b in itertools.pairwise(table)]
    exact += [float(table[-1]) * f for f in (1.01, 1.2, 1.5, 100.0)]
    middle = torch.tensor(exact)
    inf = torch.tensor(float("inf"))
    return torch.cat([middle, torch.nextafter(middle, inf), torch.nextafter(middle, -inf)]).abs().unique()


def test_every_value_and_midpoint_of_e2m1():
    x = points(E2M1)
    want = [nearest(E2M1, Fraction(v)) for v in x.tolist()]
    assert fp4.to_codes(x).tolist() == want
    negative = fp4.to_codes(-x)
    assert negative.tolist() == [code + 8 if v > 0 else 0 for code, v in zip(want, x.tolist(), strict=True)]
    assert fp4.from_codes(torch.arange(16)).tolist() == [float(v) for v in E2M1] + [-float(v) for v in E2M1]


def test_every_value_and_midpoint_of_e4m3():
    table = e4m3_table()
    x = points(table)
    want = [nearest(table, Fraction(v)) for v in x.tolist()]
    assert to_e4m3(x).view(torch.uint8).tolist() == want
    assert (to_e4m3(-x).view(torch.uint8) & 127).tolist() == want
    assert to_e4m3(torch.tensor([1e30, -1e30])).float().tolist() == [448.0, -448.0]


def test_every_scale_of_mxfp4_is_the_least_power_of_two_that_fits():
    tops = torch.tensor([size * 2.0**e for e in range(-120, 120) for size in (6.0, 6.01, 5.99, 3.01, 12.0)])
    got = quantize(tops[:, None].expand(-1, 32), "mxfp4").scale.view(torch.uint8)[:, 0].int() - 127
    for top, k in zip(tops.tolist(), got.tolist(), strict=True):
        assert 6 * Fraction(2) ** (k - 1) < Fraction(top) <= 6 * Fraction(2) ** k


@pytest.mark.parametrize(("scheme", "top"), [("int8", 127), ("int4", 7)])
def test_integers_round_ties_to_even_and_saturate(scheme, top):
    """With a scale of one: the largest value pins it."""
    halves = torch.arange(-2 * top, 2 * top + 1).float() / 2
    rows = torch.zeros(len(halves), 32)
    rows[:, 0], rows[:, 1] = float(top), halves
    got = quantize(rows, scheme).codes_int8()[:, 1]
    assert got.tolist() == [round(Fraction(float(h))) for h in halves]  # Python's round is to even as well
    assert int(got.min()) == -top and int(got.max()) == top


def test_nvfp4_of_one_block_in_exact_arithmetic():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(64, 16, generator=generator) * 0.02
    q = quantize(weight, "nvfp4")
    table = e4m3_table()
    whole = q.tensor_scale
    assert float(whole) == float(weight.abs().max() / 2688)
    for row, scale_code, packed in zip(weight, q.scale.view(torch.uint8)[:, 0].tolist(), q.codes.tolist(), strict=True):
        assert scale_code == nearest(table, Fraction(float(row.abs().max() / 6 / whole)))
        step = float(torch.tensor(float(table[scale_code])) * whole)
        codes = [n for byte in packed for n in (byte & 15, byte >> 4)]
        for value, code in zip(row, codes, strict=True):
            assert code & 7 == nearest(E2M1, abs(Fraction(float(value / step))))
            assert (code >= 8) == (float(value) < 0)


#: int4 scales are half precision: what is less than 2^-24 they cannot say.
SCALED = [(s, scale) for s in SCHEMES for scale in (1e-30, 1e-3, 1.0, 1e6) if (s, scale) != ("int4", 1e-30)]


@pytest.mark.parametrize(("scheme", "scale"), SCALED)
def test_error_is_bounded_by_half_a_step_and_recipes_err_less(scheme, scale):
    weight = torch.randn(130, 160, generator=torch.Generator().manual_seed(2)) * scale
    if scheme == "int4":
        weight = weight.clamp(-1e4, 1e4)
    errors = {}
    for recipe in POSSIBLE[scheme]:
        got = quantize(weight, scheme, recipe).dequantize().double()
        errors[recipe] = float((got - weight).norm() / weight.double().norm())
    most = {"nvfp4": 0.11, "mxfp4": 0.14, "int4": 0.11, "int8": 0.01, "fp8": 0.03, "fp8_block": 0.03}
    assert errors["max"] < most[scheme]
    assert all(error <= errors["max"] for error in errors.values()), errors


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_with_the_tensors_name_and_place(scheme, bad):
    weight = torch.ones(4, 64)
    weight[2, 33] = bad
    with pytest.raises(CheckpointError, match=r"layers\.3\.down.*\[2, 33\]"):
        quantize(weight, scheme, name="layers.3.down.weight")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_stay_zeros_beside_large_and_tiny_values(scheme):
    weight = torch.zeros(3, 128)
    assert torch.equal(quantize(weight, scheme).dequantize(), weight)
    weight[0, :32], weight[1, 64] = 1.0, 1e-38
    got = quantize(weight, scheme).dequantize()
    assert torch.isfinite(got).all()
    assert torch.equal(got == 0, (got == 0) | (weight == 0)) and torch.equal(got[2], weight[2])
    assert torch.allclose(got[0, :32], torch.ones(32), rtol=0.05)


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp4", "int4"])
def test_groups_that_do_not_divide_are_refused(scheme):
    with pytest.raises(CheckpointError, match="up has 40 inputs"):
        quantize(torch.ones(2, 40), scheme, name="up")


def test_a_recipe_that_a_format_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="recipe four_over_six is not possible for mxfp4: choose max or mse"):
        quantize(torch.ones(2, 32), "mxfp4", "four_over_six")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parts_of_rows_are_the_whole(scheme):
    weight = torch.randn(256, 160, generator=torch.Generator().manual_seed(4))
    top = float(weight.abs().max())
    whole = quantize(weight, scheme, largest=top)
    halves = [quantize(part, scheme, largest=top) for part in weight.split(128)]
    assert torch.equal(whole.codes.view(torch.uint8), torch.cat([h.codes for h in halves]).view(torch.uint8))
    assert torch.equal(whole.dequantize(), torch.cat([h.dequantize() for h in halves]))
    assert torch.equal(whole.rows(128, 200), whole.dequantize()[128:200])
