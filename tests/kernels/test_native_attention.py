"""Paged attention in C beside plain softmax: cache formats, grouped heads, spans, windows; same bits however cut."""

import math
from ctypes import byref

import pytest
import torch

from tests.kernels.conftest import library_for
from tokenmill.kernels.native.library import KV_FORMATS, AttentionStruct, RopeStruct

LANES = 16


@pytest.fixture(scope="module", params=["native", "generic"])
def library(request):
    return library_for(request.param)


class Case:
    """One sequence of `total` tokens in a cache of shuffled groups, written through the kernels themselves."""

    def __init__(self, library, heads, kv_heads, d, total, kv_dtype, window=0, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.library, self.heads, self.kv_heads, self.d, self.total = library, heads, kv_heads, d, total
        self.kv_dtype, self.window = kv_dtype, window
        groups = -(-total // LANES)
        self.table = torch.randperm(groups + 3, generator=g)[:groups].contiguous()
        row_bytes = 2 * d if kv_dtype == "bf16" else d + 4
        self.k_cache, self.v_cache = (
            torch.zeros(groups + 3, kv_heads, LANES * row_bytes, dtype=torch.uint8) for _ in range(2)
        )
        self.qkv = torch.randn(total, (heads + 2 * kv_heads) * d, generator=g)
        angle = torch.rand(total, d // 2, generator=g)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.positions = torch.arange(total)
        slots = self.table[self.positions // LANES] * LANES + self.positions % LANES
        self.q = torch.empty(total, heads, d, dtype=torch.bfloat16)
        rope = RopeStruct(
            self.qkv.data_ptr(), heads, kv_heads, d, KV_FORMATS[kv_dtype], None, None, 0.0, self.cos.data_ptr(),
            self.sin.data_ptr(), self.positions.data_ptr(), slots.data_ptr(), d**-0.5 / math.log(2), self.q.data_ptr(),
            self.k_cache.data_ptr(), self.v_cache.data_ptr(),
        )  # fmt: skip
        library.rope_write(byref(rope), total)

    def attend(self, first, rows, tokens_per_unit, heads_per_unit):
        """Outputs [rows, H, D] of the tokens first .. first + rows."""
        q, out = self.q[first : first + rows].contiguous(), torch.full((rows, self.heads, self.d), torch.nan)
        units = [(t, min(tokens_per_unit, rows - t), first + t, 0) for t in range(0, rows, tokens_per_unit)]
        units = torch.tensor(units)
        attention = AttentionStruct(
            self.heads, self.kv_heads, self.d, self.window, heads_per_unit, KV_FORMATS[self.kv_dtype], q.data_ptr(),
            self.k_cache.data_ptr(), self.v_cache.data_ptr(), units.data_ptr(), self.table.data_ptr(), len(self.table),
            out.data_ptr(),
        )  # fmt: skip
        self.library.attend(byref(attention), len(units))
        return out

    def expected(self, first, rows):
        """In float64, on rows rounded as the cache rounds them."""
        d, h, g = self.d, self.heads, self.kv_heads
        q, k, v = self.qkv.view(self.total, h + 2 * g, d).split((h, g, g), 1)
        q, k = self.turned(q), self.turned(k)
        q = (q * (d**-0.5 / math.log(2))).bfloat16().double() * math.log(2)
        k, v = (self.stored(x).double().repeat_interleave(h // g, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first : first + rows], k)
        distance = torch.arange(first, first + rows)[:, None] - torch.arange(self.total)
        hidden = (distance < 0) | ((distance >= self.window) if self.window else False)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def turned(self, x):
        a, b = x.chunk(2, -1)
        c, s = self.cos[:, None], self.sin[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def stored(self, x):
        if self.kv_dtype == "bf16":
            return x.bfloat16()
        top = x.abs().amax(-1, keepdim=True)
        return torch.round(x * (127 / top)) * (top / 127)


SHAPES = [(9, 3, 64, 3), (4, 4, 16, 1), (8, 2, 80, 2), (40, 1, 32, 40)]  # heads, kv heads, D, heads per unit


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize(("heads", "kv_heads", "d", "per_unit"), SHAPES)
def test_attention_is_a_softmax_over_what_a_row_sees(library, kv_dtype, heads, kv_heads, d, per_unit):
    case = Case(library, heads, kv_heads, d, 77, kv_dtype)
    got = case.attend(0, 77, 48 // per_unit, per_unit)
    # weights are rounded to bf16 (2^-9), or to 14 bits beside int8 values
    bound = 2e-2 if kv_dtype == "bf16" else 3e-3
    assert (got - case.expected(0, 77)).abs().max() < bound


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("window", [0, 5, 600])
def test_long_contexts_run_over_spans_and_windows(library, kv_dtype, window):
    """Two threads share the spans of one row; a window begins inside a span."""
    case = Case(library, 4, 2, 32, 1100, kv_dtype, window)
    got = case.attend(1098, 2, 2, 2)
    assert (got - case.expected(1098, 2)).abs().max() < (2e-2 if kv_dtype == "bf16" else 3e-3)


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("window", [0, 40])
def test_a_row_has_the_same_bits_however_units_are_cut(library, kv_dtype, window):
    """S26: alone or in a prefill, with spans in turn or shared by threads."""
    case = Case(library, 6, 2, 32, 1040, kv_dtype, window)
    whole = case.attend(500, 540, 16, 3)
    for first, rows, tokens, heads in [(1039, 1, 1, 3), (1030, 10, 4, 1), (500, 30, 7, 3), (700, 1, 16, 1)]:
        assert torch.equal(case.attend(first, rows, tokens, heads), whole[first - 500 : first - 500 + rows])
