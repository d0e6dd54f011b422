"""`bench kernels`: figures of every op beside ceilings of the same run; what cannot be measured is refused."""

import pytest

from tokenmill.bench import kernels
from tokenmill.bench.kernels import KernelBench, run_kernel_bench
from tokenmill.core.errors import ConfigError
from tokenmill.kernels.native.library import load_library


@pytest.fixture
def small(monkeypatch):
    """Buffers that fit a test; the figures mean nothing then."""
    monkeypatch.setattr(kernels, "_READ_BYTES", 2**22)
    monkeypatch.setattr(kernels, "_CACHE_BYTES", 2**16)


def test_every_op_is_reported_against_the_ceilings(small):
    bench = KernelBench(64, 96, ("int8", "nvfp4"), (1, 5), load_library(1).num_threads(), 1)
    result = run_kernel_bench(bench, lambda text: None)
    assert {(r["op"], r["format"], r["rows"]) for r in result["results"]} >= {
        ("product", "int8", 1),
        ("product", "nvfp4", 5),
        ("norm, activation", "int8", 5),
        ("attention, decode", "bf16", 32),
        ("attention, prefill", "int8", 512),
    }
    ceilings = result["ceilings"]
    for r in result["results"]:
        assert r["seconds"] > 0
        assert r["read_share"] == pytest.approx(r["bytes_per_s"] / ceilings["read_bytes_per_s"])
        assert r["bound_share"] == pytest.approx(max(r["read_share"], r["ops_share"]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"inputs": 40}, "multiple of 32"),
        ({"formats": ("fp7",)}, "nvfp4"),
        ({"rows": ()}, "rows"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 77}, "pool of"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings, said):
    load_library(2)
    with pytest.raises(ConfigError, match=said):
        run_kernel_bench(KernelBench(**settings), lambda text: None)
