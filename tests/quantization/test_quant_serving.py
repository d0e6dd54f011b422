"""Packed weights in a running model: answers of the weights they stand for, on every kernel, without a plain copy."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kernels.test_native import unpacked
from tests.models.drive import Driver
from tests.tiny import write_tiny_llama
from tokenmill.core.errors import ConfigError
from tokenmill.kernels.linear.quantized import QuantizedLinear
from tokenmill.kernels.native.library import load_library
from tokenmill.kernels.native.quantized import make_linear, packed_linear
from tokenmill.kernels.quantized.packed import SCHEMES
from tokenmill.kernels.quantized.rounding import quantize
from tokenmill.models.quantization.checkpoint import expand_quantized
from tokenmill.models.quantization.convert import Settings, quantize_checkpoint
from tokenmill.models.quantization.layouts import default_layout
from tokenmill.models.registry import load_model
from tokenmill.models.weights import open_checkpoint

IDS = list(range(3, 45))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("plain"), vocab_size=64, num_layers=2)


@pytest.fixture(scope="module")
def folders(source, tmp_path_factory):
    """Per scheme: (quantised folder, plain folder of the values it stands for)."""
    made = {}
    for scheme in SCHEMES:
        root = tmp_path_factory.mktemp(scheme)
        settings = Settings(scheme, "max", default_layout(scheme))
        quantize_checkpoint(open_checkpoint(source), root / "packed", settings, lambda *_: None)
        checkpoint = expand_quantized(open_checkpoint(root / "packed"))
        (root / "plain").mkdir()
        (root / "plain" / "config.json").write_text(json.dumps(checkpoint.config))
        save_file({n: checkpoint.read(n).clone() for n in checkpoint.shapes()}, root / "plain" / "model.safetensors")
        made[scheme] = (root / "packed", root / "plain")
    return made


def logits(folder, **options):
    return Driver(load_model(folder, **options).model, num_seqs=1, max_len=64).step({0: IDS})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reference_gives_the_logits_of_the_weights_it_stands_for(folders, source, scheme):
    packed, plain = folders[scheme]
    want = logits(plain, deterministic=True, dtype="float32")
    loaded = load_model(packed, deterministic=True, dtype="float32")
    layer = loaded.model._weights.layers[0].down
    assert isinstance(layer, QuantizedLinear)
    assert layer.parts[0].scheme == scheme.removesuffix("_block")  # this layer is one block: it is a scale per tensor
    assert loaded.kernels["linear"].name == "packed"
    got = Driver(loaded.model, num_seqs=1, max_len=64).step({0: IDS})
    assert torch.allclose(got, want, atol=1e-5)
    assert not torch.allclose(got, logits(source, deterministic=True, dtype="float32"), atol=1e-3)


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "fp8_block"])  # blocks cross the seams of fused layers
def test_on_load_is_the_same_as_a_quantised_checkpoint(folders, source, scheme):
    """NVFP4 shares a tensor scale between fused layers in files, and has one per fused layer on load: the same."""
    got = logits(source, deterministic=True, dtype="float32", weight_format=scheme)
    assert torch.allclose(got, logits(folders[scheme][0], deterministic=True, dtype="float32"), atol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_c_kernels_serve_packed_checkpoints(folders, scheme):
    """Activations are int8 beside integer and four-bit weights, so logits are near, not equal."""
    packed, plain = folders[scheme]
    want = logits(plain, deterministic=True, dtype="float32")
    loaded = load_model(packed, backend="native")
    layer = loaded.model._weights.layers[0].down
    assert layer.packed.format == {"nvfp4": "nvfp4", "mxfp4": "mxfp4", "int8": "int8"}.get(scheme, "bf16")
    got = Driver(loaded.model, num_seqs=1, max_len=64).step({0: IDS})
    assert float((got - want).norm() / want.norm()) < 0.08


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "int8"])  # int4 has scales of its own in C: test_native
def test_c_kernels_quantise_on_load(source, format):
    want = logits(source, deterministic=True, dtype="float32", weight_format=format)
    loaded = load_model(source, weight_format=format)
    assert loaded.kernels["linear"].name == f"native_{format}"
    got = Driver(loaded.model, num_seqs=1, max_len=64).step({0: IDS})
    assert float((got - want).norm() / want.norm()) < 0.1


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp4", "int8"])
def test_panels_hold_exactly_what_the_checkpoint_does(scheme):
    weights = [torch.randn(n, 96, generator=torch.Generator().manual_seed(n)) * n for n in (40, 8)]
    parts = [quantize(weight, scheme) for weight in weights]
    layer = packed_linear(load_library(1), parts)
    want = torch.cat([part.dequantize() for part in parts])
    if scheme == "nvfp4":  # a tensor scale per part, so per column
        assert parts[0].tensor_scale != parts[1].tensor_scale
        layer.packed.scale[:] = layer.packed.scale.clone()
        one = packed_linear(load_library(1), parts[:1])
        assert torch.allclose(unpacked(one.packed, 40, 96), want[:40], rtol=1e-6, atol=0)
        assert torch.allclose(layer.packed.scale[40:48], parts[1].tensor_scale * 128, rtol=1e-6)
    else:
        assert torch.equal(unpacked(layer.packed, 48, 96), want)
    x = torch.eye(96)
    assert torch.allclose(layer(x), want.T, rtol=1e-5, atol=1e-6)


def test_no_plain_copy_is_kept():
    weight = torch.randn(256, 512)
    layer = make_linear(load_library(1), "nvfp4", weight)
    assert layer.num_bytes <= 0.32 * 2 * weight.numel()
    assert not any(isinstance(v, torch.Tensor) for v in vars(layer).values())
    reference = QuantizedLinear([quantize(weight, "nvfp4")])
    assert sum(part.num_bytes for part in reference.parts) <= 0.32 * 2 * weight.numel()


def test_a_quantised_checkpoint_is_not_quantised_again(folders):
    with pytest.raises(ConfigError, match="is quantised already: leave out --quantization int8"):
        load_model(folders["nvfp4"][0], weight_format="int8")


def test_native_has_no_fp8(source):
    with pytest.raises(ConfigError, match="native kernels have no fp8: choose int8, int4, nvfp4, mxfp4"):
        load_model(source, backend="native", weight_format="fp8")


def test_mixed_tensors_of_one_fused_layer(folders, source, tmp_path):
    """q in int8, k and v in fp8: each part keeps its own format."""
    stored = load_file(folders["int8"][0] / "part-00001.safetensors")
    for name in ("k", "v"):
        module = f"model.layers.0.self_attn.{name}_proj"
        q = quantize(load_file(source / "model.safetensors")[f"{module}.weight"], "fp8")
        stored |= {f"{module}.weight": q.codes, f"{module}.weight_scale": q.scale}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folders["int8"][0] / "config.json").read_text())
    model = load_model(tmp_path, deterministic=True, dtype="float32").model
    assert [part.scheme for part in model._weights.layers[0].qkv.parts] == ["int8", "fp8", "fp8"]
    assert torch.isfinite(logits(tmp_path)).all()
