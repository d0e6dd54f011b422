"""The C kernels, built for every instruction set there is: equal to plain arithmetic, batch-invariant bit for bit."""

import pytest
import torch

from tests.kernels.conftest import library_for
from tokenmill.core.errors import ConfigError
from tokenmill.kernels.native import build as native_build
from tokenmill.kernels.native.build import NativeUnavailableError, build
from tokenmill.kernels.native.library import Library, load_library
from tokenmill.kernels.native.linear import NativeLinear
from tokenmill.kernels.native.pack import pack, pack_fp4
from tokenmill.kernels.select import select_kernels

FORMATS = ("bf16", "int8", "int4")


@pytest.fixture(scope="module", params=["native", "avx2", "generic"])
def library(request):
    return library_for(request.param)


def weight_of(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.1


def unpacked(packed, n, k):
    """What packed bytes stand for, from the definition of the layouts (csrc/gemm.c): [n, k] float32."""
    groups = packed.data.view(packed.columns // 32, packed.inputs // 32, -1)
    if packed.format == "bf16":  # [16 pairs][2 tiles][16][2]
        values = groups.view(torch.bfloat16).float().view(*groups.shape[:2], 16, 2, 16, 2).permute(0, 3, 4, 1, 2, 5)
        return values.reshape(packed.columns, packed.inputs)[:n, :k]
    if packed.format == "int8":  # [8 quads][2 tiles][16][4]
        values = (groups.float() - 128).view(*groups.shape[:2], 8, 2, 16, 4).permute(0, 3, 4, 1, 2, 5)
        return (values.reshape(packed.columns, packed.inputs) * packed.scale[:, None])[:n, :k]
    codes = groups[..., 64:].reshape(*groups.shape[:2], 4, 2, 16, 4)
    codes = torch.stack((codes & 15, codes >> 4), dim=3).permute(0, 4, 5, 1, 2, 3, 6)  # panel tile lane group 4 2 4
    codes = codes.reshape(packed.columns, packed.inputs).long()
    scales = groups[..., :64].contiguous()
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    if packed.format == "nvfp4":  # [2 halves][32]
        scale = scales.view(torch.float8_e4m3fn).float().view(*groups.shape[:2], 2, 32).permute(0, 3, 1, 2)
        values = e2m1[codes].unflatten(1, (-1, 16)) * scale.reshape(packed.columns, -1, 1) * packed.scale[0] / 128
    else:
        dtype = torch.float16 if packed.format == "int4" else torch.bfloat16
        scale = scales.view(dtype).float().transpose(1, 2).reshape(packed.columns, -1, 1)
        values = (codes - 8).float() if packed.format == "int4" else e2m1[codes]
        values = values.unflatten(1, (-1, 32)) * scale
    return values.flatten(1)[:n, :k]


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
    assert torch.allclose(got, rounded(x, format) @ unpacked(layer.packed, n, k).T + bias, atol=2e-4)
    assert torch.allclose(layer(x, add=torch.ones(rows, n)), got + 1, atol=1e-5)


def test_packing_rounds_as_little_as_a_format_allows(library):
    """bf16 to nearest, int8 half a step of its column, int4 half a step of its group (a whole one at the open end)."""
    weight = weight_of(70, 100)
    packed = {format: unpacked(pack(library, weight, format), 70, 100) for format in FORMATS}
    assert torch.equal(packed["bf16"], weight.bfloat16().float())
    assert ((packed["int8"] - weight).abs() <= weight.abs().amax(1, keepdim=True) / 127 * 0.5001).all()
    groups = torch.nn.functional.pad(weight, (0, 28)).unflatten(1, (-1, 32))
    top = groups.abs().amax(2).repeat_interleave(32, 1)[:, :100]
    assert ((packed["int4"] - weight).abs() <= top / 7 * 1.01).all()
    assert (packed["int4"] - weight).pow(2).mean() < (0.075 * weight.std()) ** 2 * 1.5
    assert torch.equal(unpacked(pack(library, weight.bfloat16(), "bf16"), 70, 100), weight.bfloat16().float())
    for format in FORMATS:
        assert not unpacked(pack(library, torch.zeros(3, 5), format), 3, 5).any()


@pytest.mark.parametrize(("format", "size"), [("nvfp4", 16), ("mxfp4", 32)])
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_four_bit_floats_of_a_checkpoint_are_multiplied_as_they_are(library, format, size, rows):
    generator = torch.Generator().manual_seed(4)
    n, k = 50, 96
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    if format == "nvfp4":
        scales = (torch.rand(n, k // size, generator=generator) * 400).to(torch.float8_e4m3fn)
    else:
        scales = torch.randint(120, 134, (n, k // size), dtype=torch.uint8, generator=generator)
    e2m1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = e2m1[torch.stack((codes & 15, codes >> 4), -1).flatten(1).long()].unflatten(1, (-1, size))
    scale = scales.float() if format == "nvfp4" else 2.0 ** (scales.float() - 127)
    weight = (values * scale[..., None]).flatten(1) * 0.01
    packed = pack_fp4(library, codes, scales, format, 0.01)
    assert torch.allclose(unpacked(packed, n, k) * (1 if format == "nvfp4" else 0.01), weight)
    x = torch.randn(rows, k, generator=generator)
    got = NativeLinear.of_packed(library, packed, n, k)(x)
    assert torch.allclose(got, rounded(x, format) @ weight.T, rtol=1e-4, atol=2e-4 * float(weight.abs().max()))


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


@pytest.mark.timeout(180)  # compiles twice
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
        {"deterministic": True, "backend": "native"},
        {"deterministic": False, "backend": "native", "weight_format": "fp8"},
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
