"""Reference kernels of DeepSeek V4: against plain formulas in float64, at their edges, and row by row to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.deepseek_v4.test_v4_goldens import same_bits
from tests.deepseek_v4.tiny import quantise_fp4
from tokenmill.core.errors import CheckpointError
from tokenmill.kernels import invariant
from tokenmill.kernels.compressor.reference import empty_state, finish, pool_online, pool_overlap
from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.fp8_block import reference as fp8_block
from tokenmill.kernels.grouped_linear.reference import grouped_linear
from tokenmill.kernels.hadamard.api import block_size
from tokenmill.kernels.hadamard.reference import hadamard
from tokenmill.kernels.indexer.reference import indexer_scores, indexer_topk, select_topk
from tokenmill.kernels.kv_quant.layout import RowLayout, index_layout, kv_layout
from tokenmill.kernels.kv_quant.reference import decode, encode, fake_quantise, power_of_two_at_least
from tokenmill.kernels.mhc.api import HyperConnection
from tokenmill.kernels.mhc.reference import mhc_head, mhc_post, mhc_pre
from tokenmill.kernels.moe.api import Routing
from tokenmill.kernels.moe.reference import experts, hash_router, router
from tokenmill.kernels.sparse_attention.reference import sparse_attention


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def rows_are_independent(call: Callable[..., Tensor], *inputs: Tensor) -> None:
    """The bits of a row do not depend on which other rows are computed with it, or on their number."""
    whole = call(*inputs)
    for begin, end in ((0, 1), (1, 2), (3, 8), (5, 22), (7, 40), (0, 33)):
        assert same_bits(call(*(x[begin:end].clone() for x in inputs)), whole[begin:end]), (begin, end)


# -- formats --


def test_fp4_rounds_to_nearest_even() -> None:
    """S01: every midpoint between neighbours, both signs, and a step to either side of it."""
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for i, (low, high) in enumerate(itertools.pairwise(values)):
        middle = (low + high) / 2
        even = low if i % 2 == 0 else high
        for sign in (1.0, -1.0):
            x = sign * torch.tensor([middle * (1 - 1e-6), middle, middle * (1 + 1e-6)])
            assert fp4.from_codes(fp4.to_codes(x)).tolist() == [sign * low, sign * even, sign * high]
    assert fp4.from_codes(fp4.to_codes(torch.tensor([5.1, 7.0, -1e9]))).tolist() == [6.0, 6.0, -6.0]


def test_fp4_packs_the_even_column_low() -> None:
    codes = torch.arange(16, dtype=torch.uint8).view(1, 16)
    packed = fp4.pack(codes)
    assert packed[0, 0] == 0x10 and packed[0, 7] == 0xFE
    assert torch.equal(fp4.unpack(packed), codes) and torch.equal(fp4.unpack(packed.view(torch.int8)), codes)


def test_power_of_two_at_least_is_exact() -> None:
    exponents = torch.arange(-126, 127).float()
    powers = torch.exp2(exponents.double()).float()
    assert torch.equal(power_of_two_at_least(powers), powers)
    assert torch.equal(power_of_two_at_least(torch.nextafter(powers, powers * 2)), 2 * powers)


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (130, 300), (7, 129)])
def test_fp8_blocks(shape: tuple[int, int]) -> None:
    """Partial blocks included; the error of a value is at most 1/16 of it or half the smallest step of its block."""
    weight = torch.randn(shape) * torch.logspace(-3, 3, shape[1])
    codes, scales = fp8_block.quantize(weight)
    assert scales.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    got = fp8_block.dequantize(codes, scales)
    steps = scales.float().repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
    assert bool(((got - weight).abs() <= torch.maximum(weight.abs() / 16, steps * 2**-10)).all())
    assert torch.equal(fp8_block.quantize(got)[0].float() * steps, got)


def test_fp4_weights_with_huge_and_tiny_groups() -> None:
    weight = torch.randn(4, 96) * torch.tensor([1e-20, 1.0, 1e20, 0.0])[:, None]
    packed, scales = quantise_fp4(weight + 1e-30)
    got = fp4.dequantize(packed, scales)
    assert got.shape == weight.shape and bool(torch.isfinite(got).all())
    assert bool(((got - weight).abs()[:3] <= weight.abs().amax(1, keepdim=True)[:3] / 4).all())


LAYOUTS = [
    kv_layout("fp8_e4m3", 512, 64),
    kv_layout("fp8_e4m3", 200, 16),
    kv_layout("fp8_e4m3", 32, 32),
    index_layout("fp8_e4m3", 128),
    index_layout("fp8_e4m3", 24),
    index_layout("fp4", 128),
    index_layout("fp4", 24),
    kv_layout("bf16", 48, 8),
    index_layout("fp32", 16),
]


def test_row_bytes() -> None:
    expected = {("fp8_e4m3", 512): 584, ("fp8_e4m3", 128): 132, ("fp4", 128): 68, ("bf16", 48): 96, ("fp32", 16): 64}
    for layout in LAYOUTS:
        if (layout.dtype, layout.width) in expected:
            assert layout.row_bytes == expected[layout.dtype, layout.width]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.dtype}-{layout.width}")
def test_stored_rows_are_fake_quantised_rows(layout: RowLayout) -> None:
    """Against the rule written out group by group; storing what was read changes nothing; zeros stay zeros."""
    rows = torch.randn(9, layout.width) * torch.logspace(-6, 6, 9)[:, None]
    rows[4] = 0
    stored = encode(rows, layout)
    assert stored.shape[1] * stored.element_size() == layout.row_bytes
    got = decode(stored, layout)
    want = torch.stack([_fake(row, layout) for row in rows])
    assert torch.equal(got, want)
    assert torch.equal(fake_quantise(got, layout), got)


def _fake(row: Tensor, layout: RowLayout) -> Tensor:
    if layout.dtype == "fp32":
        return row
    row = row.bfloat16().float()
    if layout.dtype == "bf16":
        return row
    out = row.clone()
    largest, least = (6.0, 6.0 * 2.0**-126) if layout.dtype == "fp4" else (448.0, 1e-4)
    for begin in range(0, layout.num_quantised, layout.group):
        part = slice(begin, min(begin + layout.group, layout.num_quantised))
        amax = max(row[part].abs().max().item(), least)
        exponent = -126
        while 2.0**exponent < amax / largest:
            exponent += 1
        scaled = row[part] / 2.0**exponent
        rounded = (
            fp4.from_codes(fp4.to_codes(scaled)) if layout.dtype == "fp4" else scaled.to(torch.float8_e4m3fn).float()
        )
        out[part] = rounded * 2.0**exponent
    return out


@pytest.mark.parametrize("dim", [1, 2, 16, 24, 128])
def test_hadamard_is_orthogonal_and_keeps_products(dim: int) -> None:
    """S17: on both sides it changes no score; on one side it scrambles them."""
    matrix = hadamard(torch.eye(dim))
    assert torch.allclose(matrix @ matrix.T, torch.eye(dim), atol=1e-6)
    assert torch.allclose(matrix.abs()[matrix != 0], torch.tensor(block_size(dim) ** -0.5))
    q, k = torch.randn(5, dim), torch.randn(7, dim)
    assert torch.allclose(hadamard(q) @ hadamard(k).T, q @ k.T, atol=1e-4)
    if dim > 1:
        assert not torch.allclose(hadamard(q) @ k.T, q @ k.T, atol=1e-1)
    rows_are_independent(hadamard, torch.randn(40, dim))


# -- indexer --


def test_indexer_chooses_the_best_and_on_ties_the_lowest() -> None:
    """Exact ties: keys that no head likes all score 0."""
    q, weights = torch.randn(20, 3, 8), torch.randn(20, 3)
    keys = torch.randn(50, 8)
    keys[::3] = 0
    visible = torch.tensor([0, 1, 4, 5, 6, 50, *range(30, 44)])
    chosen = indexer_topk(q, weights, keys, visible, 5)
    products = torch.einsum("thd,md->thm", q.double(), keys.double()).relu()
    scores = (products * weights.double()[:, :, None]).sum(1)
    for t, v in enumerate(visible.tolist()):
        best = sorted(range(v), key=lambda w: (-scores[t, w].item(), w))[:5]
        assert chosen[t].tolist() == [*sorted(best), *([-1] * (5 - len(best)))]


def test_indexer_all_equal() -> None:
    scores = torch.zeros(2, 9)
    assert select_topk(scores, torch.tensor([9, 4]), 6).tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, -1, -1]]
    hidden = torch.arange(9) >= torch.tensor([[9], [4]])
    masked = scores.masked_fill(hidden, -torch.inf)
    assert select_topk(masked, torch.tensor([9, 4]), 6).tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, -1, -1]]


@pytest.mark.parametrize(("heads", "dim"), [(8, 16), (12, 24), (64, 128)])
def test_indexer_scores_do_not_depend_on_the_batch_or_on_later_keys(heads: int, dim: int) -> None:
    q, weights, keys = torch.randn(40, heads, dim), torch.randn(40, heads), torch.randn(300, dim)
    rows_are_independent(lambda q, w: indexer_scores(q, w, keys), q, weights)
    whole = indexer_scores(q, weights, keys)
    for count in (1, 63, 64, 65, 255):
        assert same_bits(indexer_scores(q, weights, keys[:count]), whole[:, :count])


# -- compressor --


def test_overlap_pooling() -> None:
    kv, gate = torch.randn(6, 8, 24), 5 * torch.randn(6, 8, 24)
    gate[0, :4], kv[0, :4] = -torch.inf, 0  # the first entry has no window before it
    want = (torch.softmax(gate.double(), 1) * kv.double()).sum(1)
    assert torch.allclose(pool_overlap(kv, gate).double(), want, atol=1e-6)
    rows_are_independent(pool_overlap, torch.randn(40, 8, 24), torch.randn(40, 8, 24))


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 128), max_size=6), neighbours=st.integers(0, 3), scale=st.sampled_from([1.0, 60.0]))
def test_online_pooling_may_be_cut_anywhere(cuts: list[int], neighbours: int, scale: float) -> None:
    """One window in pieces, with other lanes beside it, has the bits of one run, and equals the softmax."""
    generator = torch.Generator().manual_seed(len(cuts) + neighbours)
    kv = torch.randn(128, 8, generator=generator)
    gate = scale * torch.randn(128, 8, generator=generator)
    whole = pool_online(empty_state(1, 8), kv, gate, torch.tensor([0]), torch.tensor([128]))
    state = empty_state(1 + neighbours, 8)
    for begin, end in itertools.pairwise([0, *sorted(cuts), 128]):
        first = torch.tensor([begin] + [0] * neighbours)
        state = pool_online(state, kv, gate, first, torch.tensor([end - begin] + [9] * neighbours))
    assert same_bits(finish(state)[:1], finish(whole))
    want = (torch.softmax(gate.double(), 0) * kv.double()).sum(0)
    assert torch.allclose(finish(whole)[0].double(), want, atol=1e-5)


# -- hyper-connections --


def connection(n: int, c: int, iters: int = 20) -> HyperConnection:
    num_mixes = (2 + n) * n
    fn = torch.randn(num_mixes, n * c) * (n * c) ** -0.5
    return HyperConnection(fn, torch.randn(num_mixes), torch.rand(3) + 0.5, n, iters, 1e-6, 1e-6)


@pytest.mark.parametrize(("n", "c"), [(1, 8), (2, 40), (3, 17), (4, 4096), (4, 7168), (8, 64)])
def test_mhc_equals_its_formula_at_every_width(n: int, c: int) -> None:
    """S04: a kernel made for 4096 must not run at 7168 and be wrong; both, and odd ones, against float64."""
    x, y, hc = torch.randn(3, n, c), torch.randn(3, c), connection(n, c)
    u, post, comb = mhc_pre(x, hc)
    for t in range(3):
        flat = x[t].double().flatten()
        m = hc.fn.double() @ (flat / (flat.square().mean() + 1e-6).sqrt())
        scale, base = hc.scale.double(), hc.base.double()
        pre = torch.sigmoid(m[:n] * scale[0] + base[:n]) + 1e-6
        matrix = torch.softmax((m[2 * n :] * scale[2] + base[2 * n :]).view(n, n), -1) + 1e-6
        matrix = matrix / (matrix.sum(0, keepdim=True) + 1e-6)
        for _ in range(19):
            matrix = matrix / (matrix.sum(1, keepdim=True) + 1e-6)
            matrix = matrix / (matrix.sum(0, keepdim=True) + 1e-6)
        assert torch.allclose(comb[t].double(), matrix, atol=1e-5)
        assert torch.allclose(u[t].double(), pre @ x[t].double(), atol=1e-4)
        assert torch.allclose(post[t].double(), 2 * torch.sigmoid(m[n : 2 * n] * scale[1] + base[n : 2 * n]), atol=1e-5)
        after = post[t].double()[:, None] * y[t].double() + matrix.T @ x[t].double()
        assert torch.allclose(mhc_post(x, y, post, comb)[t].double(), after, atol=1e-4)


def test_mhc_rows_are_independent_and_comb_is_doubly_stochastic() -> None:
    hc = connection(4, 48)
    x = torch.randn(40, 4, 48)
    for part in range(3):
        rows_are_independent(lambda x, part=part: mhc_pre(x, hc)[part], x)
    rows_are_independent(mhc_post, x, torch.randn(40, 48), torch.rand(40, 4), torch.rand(40, 4, 4))
    comb = mhc_pre(x, hc)[2]
    assert torch.allclose(comb.sum(1), torch.ones(40, 4), atol=1e-4)
    assert torch.allclose(comb.sum(2), torch.ones(40, 4), atol=1e-2)


def test_mhc_head() -> None:
    hc = HyperConnection(torch.randn(4, 4 * 24), torch.randn(4), torch.rand(1), 4, 20, 1e-6, 1e-6)
    x = torch.randn(40, 4, 24)
    flat = x.double().flatten(1)
    normed = flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
    weights = torch.sigmoid(normed @ hc.fn.double().T * hc.scale.double() + hc.base.double()) + 1e-6
    assert torch.allclose(mhc_head(x, hc).double(), (weights[:, :, None] * x.double()).sum(1), atol=1e-5)
    rows_are_independent(lambda x: mhc_head(x, hc), x)


@pytest.mark.parametrize(("fn", "base"), [((24, 65), 24), ((23, 64), 23), ((24, 64), 20), ((8, 64), 8)])
def test_mhc_refuses_a_shape_it_was_not_meant_for(fn: tuple[int, int], base: int) -> None:
    with pytest.raises(CheckpointError, match="not possible for 4 streams"):
        HyperConnection(torch.zeros(fn), torch.zeros(base), torch.zeros(3), 4, 20, 1e-6, 1e-6)


# -- experts --


def dense_experts(x: Tensor, routing: Routing, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    x, w13, w2 = x.double(), w13.double(), w2.double()
    out = torch.zeros_like(x)
    for t, (ids, weights) in enumerate(zip(routing.expert_ids.tolist(), routing.weights.tolist(), strict=True)):
        for e, p in zip(ids, weights, strict=True):
            gate, up = (w13[e] @ x[t]).chunk(2)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            out[t] += p * (w2[e] @ (torch.nn.functional.silu(gate) * up))
    return out


@pytest.mark.parametrize("limit", [0.3, 10.0])
def test_experts_clamp_before_the_activation(limit: float) -> None:
    """S08: activations far beyond the limit, below and above."""
    x, w13, w2 = 20 * torch.randn(40, 16), torch.randn(5, 24, 16), torch.randn(5, 16, 12)
    routing = router(x / 20, torch.randn(5, 16), torch.randn(5), 2, 1.5)
    got = experts(x, routing, w13, w2, limit)
    assert torch.allclose(got.double(), dense_experts(x, routing, w13, w2, limit), rtol=1e-4, atol=1e-4)
    ids, weights = routing.expert_ids, routing.weights
    rows_are_independent(lambda x, i, w: experts(x, Routing(i, w), w13, w2, limit), x, ids, weights)


def test_router() -> None:
    """The bias selects and does not weigh; equal scores go to the lower expert; underflow does not divide by zero."""
    x, gate, bias = torch.randn(40, 16), torch.randn(6, 16), 3 * torch.randn(6)
    got = router(x, gate, bias, 3, 2.5)
    scores = torch.nn.functional.softplus(x.double() @ gate.double().T).sqrt()
    for t in range(40):
        best = sorted(range(6), key=lambda e: -(scores[t, e] + bias[e]).item())[:3]
        assert sorted(got.expert_ids[t].tolist()) == sorted(best)
        want = 2.5 * scores[t, got.expert_ids[t]] / scores[t, best].sum()
        assert torch.allclose(got.weights[t].double(), want, rtol=1e-5)
    rows_are_independent(lambda x: router(x, gate, bias, 3, 2.5).weights, x)
    assert router(x[:1], torch.zeros(6, 16), torch.zeros(6), 3, 1.0).expert_ids.tolist() == [[0, 1, 2]]
    lost = router(torch.full((1, 16), 100.0), torch.full((6, 16), -1.0), torch.zeros(6), 2, 1.0)
    assert bool(torch.isfinite(lost.weights).all())


def test_hash_router_takes_experts_from_the_table_and_weights_from_the_gate() -> None:
    x, gate = torch.randn(4, 16), torch.randn(6, 16)
    table = torch.tensor([[5, 0], [1, 2], [3, 3]])
    got = hash_router(x, gate, table, torch.tensor([2, 0, 1, 0]), 1.5)
    assert got.expert_ids.tolist() == [[3, 3], [5, 0], [1, 2], [5, 0]]
    assert torch.allclose(got.weights.sum(-1), torch.full((4,), 1.5))
    w13, w2 = torch.randn(6, 8, 16), torch.randn(6, 16, 4)
    want = dense_experts(x, got, w13, w2, 10.0)  # an expert named twice counts twice
    assert torch.allclose(experts(x, got, w13, w2, 10.0).double(), want, rtol=1e-4, atol=1e-5)


# -- projections and attention --


def test_groups_of_the_output_projection_do_not_mix() -> None:
    """S03: groups of very different magnitude, each within its own error; permuted groups give permuted outputs."""
    magnitude = torch.tensor([1e-4, 1.0, 1e3, 1e6])
    x, weight = torch.randn(40, 4, 24) * magnitude[:, None], torch.randn(4, 6, 24)
    got = grouped_linear(x, weight)
    want = torch.einsum("tgk,grk->tgr", x.double(), weight.double())
    error = (got.double() - want).abs().amax((0, 2)) / want.abs().amax((0, 2))
    assert bool((error < 1e-5).all()), error
    order = torch.tensor([2, 0, 3, 1])
    assert same_bits(grouped_linear(x[:, order], weight[order]), got[:, order])
    rows_are_independent(lambda x: grouped_linear(x, weight), x)


@pytest.mark.parametrize(("heads", "dim", "n"), [(1, 10, 7), (3, 16, 37), (4, 32, 144), (8, 40, 160), (64, 128, 48)])
def test_sparse_attention(heads: int, dim: int, n: int) -> None:
    """Against float64; whatever lies in rows that do not count is not felt; a query may have no row at all."""
    q, rows, sink = torch.randn(40, heads, dim), torch.randn(40, n, dim), 3 * torch.randn(heads)
    is_valid = torch.rand(40, n) > 0.3
    is_valid[0] = False
    rows[~is_valid] = torch.nan
    got = sparse_attention(q, rows, is_valid, sink, dim**-0.5)
    clean = rows.nan_to_num().double()
    scores = torch.einsum("thd,tnd->thn", q.double(), clean) * dim**-0.5
    scores = scores.masked_fill(~is_valid[:, None], -torch.inf)
    with_sink = torch.cat((scores, sink.double().view(1, -1, 1).expand(40, -1, 1)), -1)
    want = torch.einsum("thn,tnd->thd", torch.softmax(with_sink, -1)[..., :-1], clean)
    assert torch.allclose(got.double(), want, atol=1e-5)
    assert not got[0].any()
    rows_are_independent(lambda q, r, v: sparse_attention(q, r, v, sink, 0.2), q, rows, is_valid)


@pytest.mark.parametrize("threads", [1, 2])
def test_batched_products_are_independent(threads: int) -> None:
    """kernels/invariant.batched_matmul at odd shapes, on one thread and on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for m, k, n in ((1, 10, 48), (3, 24, 7), (5, 64, 129), (8, 36, 37)):
            rows_are_independent(invariant.batched_matmul, torch.randn(40, m, k), torch.randn(40, k, n))
    finally:
        torch.set_num_threads(before)
