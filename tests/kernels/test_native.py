"""The C kernels, built for every instruction set there is: equal to plain arithmetic, batch-invariant bit for bit."""

import pytest
import torch

from tokenmill.core.errors import ConfigError
from tokenmill.kernels.native import build as native_build
from tokenmill.kernels.native.build import NativeUnavailableError, build
from tokenmill.kernels.native.library import Library, load_library
from tokenmill.kernels.native.linear import NativeLinear
from tokenmill.kernels.select import select_kernels

FORMATS = ("bf16", "int8", "int4")


@pytest.fixture(scope="module", params=["native", "avx2", "generic"])
def library(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_CPU_ISA", request.param)
        library = Library(build())
    library.start(2)
    return library


def weight_of(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.1


def dequantised(layer, weight):
    """What the packed weight stands for, from the definition of the format."""
    if layer.packed.format == "bf16":
        return weight.bfloat16().float()
    if layer.packed.format == "int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        return torch.round(weight / scale) * scale
    n, k = weight.shape
    groups = torch.nn.functional.pad(weight, (0, -k % 32)).view(n, -1, 32)
    low = groups.amin(2, keepdim=True).half().float()
    scale = ((groups.amax(2, keepdim=True) - low) / 15).half().float()
    return (torch.round((groups - low) / scale).clamp(0, 15) * scale + low).view(n, -1)[:, :k]


def rounded(x, format):
    """Activations as the kernels see them: bf16, or int8 with a scale per 32 inputs."""
    if format == "bf16":
        return x.bfloat16().float()
    k = x.shape[1]
    groups = torch.nn.functional.pad(x, (0, -k % 32)).unflatten(1, (-1, 32))
    top = groups.abs().amax(2, keepdim=True).clamp(min=1e-30)
    return (torch.round(groups * (torch.full_like(top, 127) / top)) * (top / 127)).flatten(1)[:, :k]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(32, 32), (16, 64), (33, 40), (100, 576), (7, 1)])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 13, 100])
def test_a_linear_layer_is_the_product_with_its_packed_weight(library, format, n, k, rows):
    """Inputs as the kernel rounds them; what is left is the order of a float32 sum."""
    weight, x = weight_of(n, k), torch.randn(rows, k, generator=torch.Generator().manual_seed(1))
    bias = torch.linspace(-1, 1, n)
    layer = NativeLinear(library, format, weight, bias)
    got = layer(x)
    assert got.shape == (rows, n)
    assert torch.allclose(got, rounded(x, format) @ dequantised(layer, weight).T + bias, atol=2e-4)
    assert torch.allclose(layer(x, add=torch.ones(rows, n)), got + 1, atol=1e-5)


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_has_the_same_bits_in_every_batch(library, format):
    """S26: no register block, chunk or thread changes a row."""
    layer = NativeLinear(library, format, weight_of(112, 96))
    x = torch.randn(120, 96, generator=torch.Generator().manual_seed(2))
    whole = layer(x)
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 97):
        for start in (0, 1, 7, 120 - size):
            assert torch.equal(layer(x[start : start + size]), whole[start : start + size])


def test_every_instruction_set_gives_the_same_integers_and_close_floats():
    """int8 products are exact within a group; only the float chain may be contracted differently."""
    outs = {}
    x, weight = torch.randn(9, 160, generator=torch.Generator().manual_seed(3)), weight_of(48, 160)
    for isa in ("native", "avx2", "generic"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOKENMILL_CPU_ISA", isa)
            outs[isa] = NativeLinear(Library(build()), "int8", weight)(x)
    for isa in ("avx2", "generic"):
        assert torch.allclose(outs[isa], outs["native"], rtol=1e-5, atol=1e-5)


def test_the_build_is_kept_and_its_key_names_what_it_depends_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    first = build()
    assert first.seconds > 0 and first.path.exists()
    assert build() == native_build.Build(first.path, first.isa, first.compiler, 0.0)
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "generic")
    assert build().path != first.path


def test_no_compiler_falls_back_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(native_build.shutil, "which", lambda name: None)
    load_library.cache_clear()
    with pytest.raises(NativeUnavailableError, match="no C compiler"):
        build()
    kernels = select_kernels(deterministic=False)
    assert kernels.native is None and "no C compiler" in caplog.text
    with pytest.raises(ConfigError, match="no C compiler"):
        select_kernels(deterministic=False, weight_format="int8")
    load_library.cache_clear()


@pytest.mark.parametrize(
    "settings",
    [
        {"deterministic": True, "weight_format": "int8"},
        {"deterministic": True, "backend": "native"},
        {"deterministic": False, "backend": "cpu", "weight_format": "int4"},
        {"deterministic": False, "dtype": torch.float32, "weight_format": "int8"},
    ],
)
def test_what_does_not_go_together_is_refused(settings):
    with pytest.raises(ConfigError):
        select_kernels(**settings)


def test_an_unknown_instruction_set_is_named(monkeypatch):
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "mmx")
    with pytest.raises(NativeUnavailableError, match="mmx"):
        build()
