"""The building blocks of the reference kernels: a row gets the same bits whatever is computed beside it.

These are facts about torch's CPU library that the deterministic mode stands on; a new torch must pass them.
"""

import pytest
import torch

from tokenmill.kernels import invariant

# (K, N): sizes of the supported models, odd ones, and the small ones where MKL takes other paths.
SHAPES = [
    (576, 1536), (1536, 576), (64, 256), (37, 53), (129, 1), (1, 65), (5, 4), (7, 8), (15, 15), (3, 3), (577, 193),
    (333, 1025), (4096, 64), (11008, 33), (16384, 24), (512, 1), (1, 1), (16, 16), (2048, 128),
]  # fmt: skip
ROWS = [1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 33, 40, 63, 65, 100, 129, 255, 300, 511, 513, 600]


def assert_same(got, want, what):
    if not torch.equal(got, want):
        where = (got != want).nonzero()[0].tolist()
        raise AssertionError(f"{what}: first difference at {where}: {got[tuple(where)]!r} != {want[tuple(where)]!r}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul_rows_do_not_depend_on_the_batch(shape, num_threads, generator):
    """S26: width-1 and width-k passes are bit-equal."""
    inner, columns = shape
    x = torch.randn(600, inner, generator=generator)
    weight = torch.randn(columns, inner, generator=generator)
    alone = torch.cat([invariant.matmul(x[i : i + 1], weight) for i in range(0, 600, 29)])
    for rows in ROWS if num_threads == 1 else ROWS[::4]:
        for start in (0, 600 - rows):
            together = invariant.matmul(x[start : start + rows], weight)
            picked = [i for i in range(0, 600, 29) if start <= i < start + rows]
            want = alone[[i // 29 for i in picked]]
            assert_same(together[[i - start for i in picked]], want, f"{rows} rows from {start}")


def test_matmul_equals_the_plain_product(generator):
    x, weight = torch.randn(13, 37, generator=generator), torch.randn(5, 37, generator=generator)
    torch.testing.assert_close(invariant.matmul(x, weight), x @ weight.T)
    assert invariant.matmul(x[:0], weight).shape == (0, 5)


@pytest.mark.parametrize("shape", [(64, 64), (64, 80), (64, 8), (16, 64), (33, 7)], ids=str)
def test_batched_products_do_not_depend_on_batch_or_rows(shape, num_threads, generator):
    inner, columns = shape
    x = torch.randn(40, 24, inner, generator=generator)
    y = torch.randn(40, inner, columns, generator=generator)
    alone = torch.cat([invariant.batched_matmul(x[i : i + 1, :1], y[i : i + 1]) for i in range(40)])
    for batch in (1, 3, 16, 40):
        for rows in (1, 7, 9, 24):
            assert_same(invariant.batched_matmul(x[:batch, :rows], y[:batch])[:, :1], alone[:batch], (batch, rows))


ELEMENTWISE = {
    "exp": torch.exp,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "rsqrt": torch.rsqrt,
    "silu": invariant.silu,
    "sigmoid": invariant.sigmoid,
    "softplus": invariant.softplus,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elements_do_not_depend_on_their_place(name, num_threads, generator):
    function = ELEMENTWISE[name]
    x = torch.randn(100_003, generator=generator).mul_(4)
    x = x.abs() + 0.01 if name in ("log1p", "rsqrt") else x
    whole = function(x)
    for length in (1, 2, 3, 7, 15, 16, 17, 33, 1000, 4097, 99_999):
        for start in (0, 1, 5, 100_003 - length):
            start = min(start, 100_003 - length)
            part = x[start : start + length]
            assert_same(function(part), whole[start : start + length], f"view of {length} from {start}")
            assert_same(function(part.clone()), whole[start : start + length], f"copy of {length} from {start}")


@pytest.mark.parametrize("name", ["silu", "sigmoid", "softplus"])
def test_spelled_out_functions_equal_torch(name, generator):
    x = torch.randn(1000, generator=generator) * 20
    own = {"silu": invariant.silu, "sigmoid": invariant.sigmoid, "softplus": invariant.softplus}[name]
    theirs = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid, "softplus": torch.nn.functional.softplus}
    torch.testing.assert_close(own(x), theirs[name](x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("columns", [1, 3, 17, 64, 129, 576, 4096, 28672])
def test_row_sums_do_not_depend_on_the_batch(columns, num_threads, generator):
    x = torch.randn(64, columns, generator=generator)
    alone = torch.cat([invariant.mean_square(x[i : i + 1].clone()) for i in range(64)])
    for rows in (2, 3, 7, 8, 33, 64):
        assert_same(invariant.mean_square(x[:rows].clone()), alone[:rows], f"{rows} rows")


def test_too_long_rows_are_refused():
    with pytest.raises(AssertionError, match="not summed independently"):
        invariant.mean_square(torch.zeros(1, 40_000))
