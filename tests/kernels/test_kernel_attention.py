"""Paged ragged attention: both kernels against dense attention in float64; the reference is bit-equal in any cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.paged import PagedKeys
from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch
from tokenmill.kernels.attention.cpu import CpuAttention
from tokenmill.kernels.attention.plan import split
from tokenmill.kernels.attention.reference import ReferenceAttention

KERNELS = {"reference": ReferenceAttention(), "cpu": CpuAttention()}
SPECS = {
    "gqa": AttentionSpec(6, 2, 64, 0.125),
    "mha": AttentionSpec(3, 3, 24, 24**-0.5),
    "mqa": AttentionSpec(5, 1, 10, 0.3),
    "window": AttentionSpec(4, 2, 16, 0.25, window=37),
    "window-1": AttentionSpec(2, 2, 8, 0.25, window=1),
}


def near(got, want, dtype):
    """float32: summation order only. bfloat16: scores are rounded to 8 bits, an error of 2^-9 of a score of up to
    about 8 moves a weight by 2 %, and the weighted mean of values by less than that."""
    atol = 1e-5 if dtype == torch.float32 else 0.06
    torch.testing.assert_close(got.double(), want, atol=atol, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_mixed_steps_equal_dense_attention(kernel, spec, dtype):
    """Prefill, chunks, decode and short verification side by side; contexts of very different length."""
    keys = PagedKeys([300, 1, 150, 40, 40], spec, dtype=dtype)
    steps = [{0: 200, 3: 1}, {1: 1, 3: 9, 0: 1}, {2: 130, 3: 4, 0: 4, 4: 4}, {2: 1, 4: 1}, {4: 35, 0: 95, 2: 19, 3: 1}]
    outs = {b: [] for b in range(5)}
    for step in steps:
        for b, rows in keys.run(kernel, step).items():
            outs[b].append(rows)
    for b, parts in outs.items():
        got = torch.cat(parts)
        assert got.dtype == dtype
        near(got, keys.answer(b, len(got)), dtype)


@pytest.mark.parametrize("block_size", [1, 5, 128])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_any_block_size(kernel, block_size):
    keys = PagedKeys([77], SPECS["gqa"], block_size=block_size)
    got = torch.cat([keys.run(kernel, {0: n})[0] for n in (30, 1, 1, 45)])
    near(got, keys.answer(0, 77), torch.float32)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_sinks_take_weight_and_give_nothing(kernel):
    spec, sinks = SPECS["gqa"], torch.tensor([-50.0, -1.0, 0.0, 1.0, 3.0, 50.0])
    keys = PagedKeys([40], spec)
    got = torch.cat([keys.run(kernel, {0: n}, sinks=sinks)[0] for n in (33, 1, 6)])
    near(got, keys.answer(0, 40, sinks), torch.float32)
    assert got[:, 5].abs().max() < 1e-5, "a huge sink takes everything"
    near(got[:, :1], PagedKeys([40], spec).answer(0, 40)[:, :1], torch.float32)  # a tiny one takes nothing


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_window_groups_go_on_after_old_blocks_are_freed(kernel):
    """Blocks before the window are gone: the table begins later, and what lies in them is never read."""
    spec = SPECS["window"]
    keys = PagedKeys([200], spec, block_size=8)
    got = [keys.run(kernel, {0: 100})[0]]
    for rows in (1, 1, 20, 1, 77):
        first = max(0, keys.done[0] - spec.window + 1) // 8
        keys.cache[keys.table[0, :first]] = torch.nan
        got.append(keys.run(kernel, {0: rows}, first_block={0: first})[0])
    near(torch.cat(got), keys.answer(0, 200), torch.float32)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_what_a_former_owner_left_is_never_multiplied(kernel):
    """A request whose activations overflowed leaves NaN in its blocks; the next owner of a block must not see it."""
    keys = PagedKeys([100, 20, 20], SPECS["gqa"])
    keys.cache.fill_(torch.nan)
    got = {b: [] for b in range(3)}
    for step in ({0: 70, 1: 3}, {0: 1, 1: 13, 2: 15}, {0: 1, 1: 1, 2: 1}, {0: 28, 1: 3, 2: 4}):
        for b, rows in keys.run(kernel, step).items():
            got[b].append(rows)
    for b, parts in got.items():
        near(torch.cat(parts), keys.answer(b, len(torch.cat(parts))), torch.float32)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_protected_rows_are_attended_but_not_written(kernel):
    """Rows that are computed again to rebuild a window group leave shared blocks as they are."""
    keys = PagedKeys([40], SPECS["gqa"])
    keys.run(kernel, {0: 32})
    before = keys.cache.clone()
    keys.done[0], keys.k = 16, keys.k + 100.0  # the rows at 16..31 would be written with other content
    keys.run(kernel, {0: 24}, protected={0: 32})
    shared = keys.table[0, :2]
    assert torch.equal(keys.cache[shared], before[shared])
    assert not torch.equal(keys.cache, before), "rows from 32 on are written"


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_sequence_without_rows_and_an_empty_step(kernel):
    keys = PagedKeys([20, 20], SPECS["gqa"])
    near(keys.run(kernel, {0: 5, 1: 0})[0], keys.answer(0, 5), torch.float32)
    out = keys.run(kernel, {0: 0, 1: 0})
    assert all(rows.shape == (0, 6, 64) for rows in out.values())


@st.composite
def cuttings(draw, lens):
    """Random steps that together compute all of `lens`: any subset of sequences, any number of rows each."""
    left, steps = dict(enumerate(lens)), []
    while any(left.values()):
        open_seqs = [b for b, n in left.items() if n]
        chosen = draw(st.permutations(open_seqs))[: draw(st.integers(1, len(open_seqs)))]
        step = {b: draw(st.integers(1, left[b])) if draw(st.booleans()) else 1 for b in chosen}
        steps.append(step)
        for b, n in step.items():
            left[b] -= n
        if len(steps) > 12:
            steps.append({b: n for b, n in left.items() if n})
            break
    return [step for step in steps if step]


LENS = [150, 3, 64, 65]


@pytest.fixture(scope="module")
def whole():
    """Each sequence prefilled alone and whole."""
    return {
        name: [
            PagedKeys(LENS, SPECS[name], block_size=7).run(KERNELS["reference"], {b: n})[b] for b, n in enumerate(LENS)
        ]
        for name in ("gqa", "mqa", "window")
    }


@settings(max_examples=25, deadline=None)
@given(steps=cuttings(LENS), name=st.sampled_from(["gqa", "mqa", "window"]), block_size=st.sampled_from([1, 16, 64]))
def test_reference_gives_the_same_bits_in_any_cut(whole, steps, name, block_size):
    """S26: prefill, chunk, verification and decode of a position agree bit for bit."""
    keys = PagedKeys(LENS, SPECS[name], block_size=block_size)
    got = {b: [] for b in range(len(LENS))}
    for step in steps:
        for b, rows in keys.run(KERNELS["reference"], step).items():
            got[b].append(rows)
    for b, parts in got.items():
        assert torch.equal(torch.cat(parts), whole[name][b]), f"sequence {b} in steps {steps}"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3000)), min_size=1, max_size=30),
    st.sampled_from([1, 16, 128]),
)
def test_split_covers_every_sequence_once_and_bounds_padding(seqs, block_size):
    rows, contexts = zip(*seqs, strict=True)
    cu_seqlens = (0, *torch.tensor(rows).cumsum(0).tolist())
    batch = PagedBatch(cu_seqlens, contexts, torch.zeros(len(rows), 1), torch.zeros(len(rows)), block_size)
    groups = list(split(batch))
    assert sorted(b for group in groups for b in group) == [b for b in range(len(rows)) if rows[b]]
    for group in groups:
        assert len({rows[b] for b in group}) == 1, "equally many rows"
        blocks = sorted(-(-batch.total_len(b) // block_size) for b in group)
        for i, n in enumerate(blocks):
            assert n <= 2 * blocks[0] or i * (n - blocks[0]) <= 64, f"too much padding: {blocks}"
