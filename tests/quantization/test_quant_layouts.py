"""Layouts of other tools: written and read back, read by the definition of the layout, and refused by name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.tiny import llama_tensors, tiny_llama_config
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.quantized.rounding import quantize
from tokenmill.models.quantization.checkpoint import QuantizedCheckpoint, expand_quantized
from tokenmill.models.quantization.layouts import _WRITABLE, from_parts, to_parts
from tokenmill.models.weights import open_checkpoint

PAIRS = [(layout, scheme) for layout, schemes in _WRITABLE.items() for scheme in schemes]


@pytest.mark.parametrize(("layout", "scheme"), PAIRS)
def test_written_and_read_back_is_the_same(layout, scheme):
    weight = torch.randn(160, 192, generator=torch.Generator().manual_seed(1))
    q = quantize(weight, scheme)
    back = from_parts("m", to_parts(q, layout))
    assert back.scheme == scheme and back.shape == (160, 192)
    assert torch.allclose(back.dequantize(), q.dequantize(), rtol=2e-7, atol=0)


def test_compressed_tensors_global_scale_divides_and_is_taken_as_stored():
    """What is stored need not be 2688 / amax: decoding never computes it anew."""
    codes = torch.full((1, 8), 0x72, dtype=torch.uint8)  # 1 in the even, 6 in the odd places
    parts = {
        "weight_packed": codes,
        "weight_scale": torch.tensor([[2.0]]).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([32640.0]),
    }
    got = from_parts("m", parts).dequantize()
    assert torch.equal(got[0], torch.tensor([1.0, 6.0]).repeat(8) * (torch.tensor(2.0) / 32640.0))


def test_int_words_hold_eight_inputs_from_the_lowest_bits():
    word = sum((i % 16) << (4 * i) for i in range(8)) - 2**32 * (7 >= 8)
    parts = {
        "weight_packed": torch.tensor([[word]], dtype=torch.int64).to(torch.int32),
        "weight_scale": torch.tensor([[0.5]]),
        "weight_shape": torch.tensor([1, 8]),
    }
    assert from_parts("m", parts).dequantize()[0].tolist() == [(i - 8) / 2 for i in range(8)]


def test_modelopt_fp8_blocks_keep_their_dimensions():
    q = quantize(torch.randn(256, 384), "fp8_block")
    parts = {"weight": q.codes, "weight_scale": q.scale[:, None, :, None]}
    assert torch.equal(from_parts("m", parts).dequantize(), q.dequantize())
    parts = {"weight": q.codes, "weight_scale_inv": q.scale}
    assert torch.equal(from_parts("m", parts).dequantize(), q.dequantize())


@pytest.mark.parametrize(
    "change",
    [
        {"weight_scale": torch.ones(160, 11).to(torch.float8_e4m3fn)},
        {"weight_scale": torch.ones(80, 12).to(torch.float8_e4m3fn)},
        {"weight_scale": torch.ones(160, 12)},
        {"weight_scale_2": torch.ones(160)},
        {"weight": torch.zeros(160, 96, dtype=torch.int16)},
    ],
)
def test_scales_that_do_not_fit_are_refused_with_shapes(change):
    parts = to_parts(quantize(torch.randn(160, 192), "nvfp4"), "modelopt") | change
    with pytest.raises(CheckpointError, match=r"layers\.0\.q .*weight_scale .*\(.*not known, or its scales do not fit"):
        from_parts("layers.0.q", parts)


def test_zero_points_are_refused():
    parts = to_parts(quantize(torch.randn(32, 64), "int4"), "compressed-tensors")
    with pytest.raises(CheckpointError, match="zero points"):
        from_parts("m", parts | {"weight_zero_point": torch.zeros(32, 2)})


def test_layouts_do_not_write_everything():
    with pytest.raises(ConfigError, match="the modelopt layout has no int4"):
        to_parts(quantize(torch.randn(32, 64), "int4"), "modelopt")


# -- whole checkpoints --


def write_mixed(folder, schemes, quant_config, **changes):
    """A tiny Llama whose projections are in `schemes` in turn; returns the plain weights it stands for."""
    config = tiny_llama_config(vocab_size=64, num_layers=1)
    tensors, plain = {}, {}
    names = [n for n in llama_tensors(config) if n.endswith("_proj.weight")]
    for name, tensor in llama_tensors(config).items():
        plain[name] = tensor
        if name in names:
            scheme = schemes[names.index(name) % len(schemes)]
            q = quantize(tensor, scheme)
            plain[name] = q.dequantize()
            module = name.removesuffix(".weight")
            tensors |= {
                f"{module}.{ending}": part.clone() for ending, part in to_parts(q, "compressed-tensors").items()
            }
        else:
            tensors[name] = tensor
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quant_config}))
    save_file(tensors | changes, folder / "model.safetensors", metadata={"format": "pt"})
    return plain


def test_a_mixed_checkpoint_follows_the_tensors_not_the_file(tmp_path):
    """S-class bug: every one-byte tensor read by what the config says of the whole file."""
    schemes = ["nvfp4", "int8", "fp8", "mxfp4", "int4", "fp8_block"]
    ignored = {"model.layers.0.self_attn.q_proj.input_scale": torch.tensor(1.0)}
    plain = write_mixed(tmp_path, schemes, {"quant_method": "compressed-tensors", "format": "int-quantized"}, **ignored)
    checkpoint = expand_quantized(open_checkpoint(tmp_path))
    assert isinstance(checkpoint, QuantizedCheckpoint) and "quantization_config" not in checkpoint.config
    assert dict(checkpoint.shapes()) == {name: tuple(tensor.shape) for name, tensor in plain.items()}
    for name, want in plain.items():
        assert torch.allclose(checkpoint.read(name).float(), want, rtol=2e-7, atol=0), name
        checkpoint.release(name)


def test_plain_checkpoints_stay_as_they_are(tmp_path):
    write_mixed(tmp_path, ["int8"], None)
    plain = open_checkpoint(tmp_path)
    assert isinstance(expand_quantized(plain), QuantizedCheckpoint)
    save_file({"a.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    plain = open_checkpoint(tmp_path)
    assert expand_quantized(plain) is plain


def test_unknown_methods_are_refused_by_name(tmp_path):
    write_mixed(tmp_path, ["int8"], {"quant_method": "gptq"})
    with pytest.raises(CheckpointError, match="quant_method='gptq' is not supported: possible: modelopt"):
        expand_quantized(open_checkpoint(tmp_path))


def test_scales_that_are_not_numbers_are_refused_when_read(tmp_path):
    name = "model.layers.0.mlp.up_proj"
    write_mixed(tmp_path, ["int8"], None, **{f"{name}.weight_scale": torch.full((128, 1), float("nan"))})
    with pytest.raises(CheckpointError, match="up_proj: a scale is negative or not finite"):
        expand_quantized(open_checkpoint(tmp_path)).read(f"{name}.weight")
