"""GGUF files: every quant type the package can write, names and row order, and everything broken."""

import builtins
import struct

import pytest
import torch

from tests.models.drive import Driver
from tests.tiny import llama_tensors, tiny_llama_config, write_tiny_llama
from tokenmill.core.errors import CheckpointError
from tokenmill.models import gguf_names
from tokenmill.models.registry import load_model
from tokenmill.models.weights import open_checkpoint

pytestmark = pytest.mark.requires_gguf

Q0 = "model.layers.0.self_attn.q_proj.weight"
CONFIG = tiny_llama_config(hidden_size=256, intermediate_size=512, num_layers=1, vocab_size=64)
#: Largest error of a value, in units of the largest of its block of 32: half a step of each format.
STEPS = {
    "F32": 0.0,
    "F16": 2**-11,
    "BF16": 2**-8,
    "Q8_0": 0.5 / 127 + 2**-11,
    "Q5_0": 1 / 16,
    "Q5_1": 1 / 31,
    "Q4_0": 1 / 8,
    "Q4_1": 1 / 15,
    "TQ2_0": 0.5,
    "MXFP4": 0.5,
}


@pytest.fixture
def tensors():
    return llama_tensors(CONFIG)


@pytest.fixture
def write(tmp_path, tensors):
    from tests.models.gguf_files import write_gguf

    def write(**options):
        return write_gguf(tmp_path / "tiny.gguf", CONFIG, tensors, **options)

    return write


def logits(path, ids=range(30)):
    model = load_model(path, dtype="float32", deterministic=True).model
    return Driver(model, num_seqs=1, max_len=64).step({0: list(ids)})


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_float32_file_equals_the_folder_it_came_from(write, tmp_path):
    folder = write_tiny_llama(tmp_path / "folder", hidden_size=256, intermediate_size=512, num_layers=1, vocab_size=64)
    assert torch.equal(logits(write()), logits(folder))


@pytest.mark.parametrize("kind", STEPS)
def test_quant_types_are_dequantised_on_load(write, tensors, kind):
    checkpoint = open_checkpoint(write(kind=kind))
    assert set(checkpoint.shapes()) == set(tensors)
    for name, want in tensors.items():
        got = checkpoint.read(name)
        checkpoint.release(name)
        assert got.dtype == torch.float32 and got.shape == want.shape
        if want.dim() == 1:
            assert torch.equal(got, want)
        else:
            # Rows are long enough that the largest of a row is at least the largest of each of its blocks.
            largest = want.abs().amax(-1, keepdim=True)
            assert ((got - want).abs() <= STEPS[kind] * largest * 2).all(), name
    assert torch.isfinite(logits(checkpoint.path)).all()


def test_k_quants_are_dequantised(tmp_path, write, tensors):
    """The package cannot write these, so known bytes: one block of 256 values with scale 0.5, worked out by hand."""
    import numpy as np
    from gguf import GGMLQuantizationType

    from tokenmill.models.gguf_file import GGUFTensor
    from tokenmill.models.weights_gguf import GGUFCheckpoint

    half = np.float16(0.5).tobytes()
    # Q6_K: 128 low nibbles, 64 high pairs, 16 int8 scales, fp16 scale; value = d * scale * (q - 32)
    q6 = bytes([0x53] * 128) + bytes([0x00] * 64) + bytes([2] * 16) + half
    # Q4_K: fp16 d, fp16 dmin, 12 bytes of 6-bit scales and mins, 128 nibble pairs; value = d * scale * q - dmin * min
    q4 = half + np.float16(0.0).tobytes() + bytes([1] * 4 + [0] * 4 + [0x01] * 4) + bytes([0x73] * 128)
    checkpoint = GGUFCheckpoint(write())
    for kind, block, values in (("Q6_K", q6, {3 - 32.0, 5 - 32.0}), ("Q4_K", q4, {1.5, 3.5})):
        data = bytearray(checkpoint._file.map[:]) + block
        (tmp_path / f"{kind}.gguf").write_bytes(data)
        other = GGUFCheckpoint(tmp_path / f"{kind}.gguf")
        other._tensors["x"] = GGUFTensor((1, 256), GGMLQuantizationType[kind].value, len(data) - len(block))
        assert set(other.read("x").flatten().tolist()) == values, kind


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_files_keep_their_row_order(tmp_path, architecture):
    from tests.models.gguf_files import write_gguf

    class_name = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[architecture]
    changes = {"architectures": [class_name], "model_type": architecture, "tie_word_embeddings": True}
    folder = write_tiny_llama(tmp_path / "folder", **changes)
    config = tiny_llama_config(**changes)
    file = write_gguf(tmp_path / "qwen.gguf", config, llama_tensors(config), architecture=architecture)
    loaded = load_model(file)
    assert loaded.architecture == architecture and loaded.model.config.is_tied
    assert torch.equal(logits(file), logits(folder))


def test_biases_of_llama_are_reordered_too(tmp_path):
    from tests.models.gguf_files import write_gguf

    config = tiny_llama_config(attention_bias=True)
    tensors = llama_tensors(config)
    generator = torch.Generator().manual_seed(9)
    for part, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
        for i in range(2):
            tensors[f"model.layers.{i}.self_attn.{part}_proj.bias"] = torch.randn(rows, generator=generator)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "biased.gguf", config, tensors))
    assert checkpoint.config["attention_bias"]
    for name, want in tensors.items():
        assert torch.equal(checkpoint.read(name), want), name


def test_llama3_scaling_is_read_from_its_tensor(write, tmp_path, tensors):
    import numpy as np

    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    scaled = open_checkpoint(write(extra_tensors=[("rope_freqs.weight", divisors)]))
    assert scaled.config["rope_parameters"]["rope_type"] == "divisors"
    assert "rope_freqs.weight" not in scaled.shapes()
    model = load_model(scaled.path).model
    want = [10000.0 ** (-2 * i / 64) / d for i, d in enumerate(divisors)]
    assert model.config.rotary.frequencies == pytest.approx(want)


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, "linear"),
        ({"llama.rope.scale_linear": 4.0}, "linear"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 1024,
            },
            "yarn",
        ),
    ],
)
def test_other_scalings_come_from_metadata(write, keys, kind):
    checkpoint = open_checkpoint(write(keys=keys.items()))
    parameters = checkpoint.config["rope_parameters"]
    assert parameters["rope_type"] == kind and parameters["factor"] == 4.0
    model = load_model(checkpoint.path).model
    assert model.config.rotary.frequencies[-1] == pytest.approx(10000.0 ** (-62 / 64) / 4)
    assert model.max_model_len == 4096


def test_tokenizer_facts_come_along_and_long_vocabularies_are_skipped(write):
    path = write(vocabulary=[f"token{i}" for i in range(2000)])
    loaded = load_model(path)
    assert loaded.tokenizer_path == path and loaded.eos_token_ids == (2, 5)
    assert load_model(write()).tokenizer_path is None


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("general.architecture", "mamba", "general.architecture='mamba' is not supported: possible: llama"),
        ("llama.expert_count", 8, "llama.expert_count=8"),
        ("llama.attention.value_length", 32, "llama.attention.value_length=32"),
        ("llama.rope.dimension_count", 16, "llama.rope.dimension_count=16"),
        ("llama.rope.scaling.type", "longrope", "llama.rope.scaling.type='longrope'"),
        ("llama.attention.head_count_kv", [1, 2], "llama.attention.head_count_kv=[1, 2]"),
        ("llama.block_count", None, "llama.block_count=None"),
        ("llama.embedding_length", 128, "misshaped"),
    ],
)
def test_what_is_not_supported_is_refused_by_key(write, key, value, complaint):
    assert complaint in refusal(write(keys=[(key, value)]))


def test_unknown_tensors_are_refused(write):
    import numpy as np

    message = refusal(write(extra_tensors=[("blk.0.ffn_gate_inp.weight", np.zeros((4, 4), np.float32))]))
    assert "unknown (1): blk.0.ffn_gate_inp.weight" in message


def test_every_truncation_is_refused(write):
    path = write(vocabulary=[f"token{i}" for i in range(2000)])
    whole = path.read_bytes()
    begin = open_checkpoint(path)._file.data_begin
    for length in [0, 3, 4, 20, 24, 30, 100, begin // 2, begin - 40, begin, len(whole) // 2, len(whole) - 33]:
        path.write_bytes(whole[:length])
        assert "tiny.gguf" in refusal(path)


@pytest.mark.parametrize(
    ("offset", "data", "complaint"),
    [
        (0, b"GGML", "does not begin with GGUF"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "little-endian"),
        (8, struct.pack("<Q", 2**60), "cannot be read"),
        (24, struct.pack("<Q", 2**62), "ends inside a string"),
    ],
)
def test_corrupt_headers_are_refused(write, offset, data, complaint):
    path = write()
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)
    assert complaint in refusal(path)


def test_a_tensor_type_that_cannot_be_dequantised_is_named(write):
    from gguf import GGMLQuantizationType

    path = write()
    content = bytearray(path.read_bytes())
    name = b"blk.0.attn_v.weight"
    at = content.index(name) + len(name) + 4 + 16  # dimensions count, two dimensions, then the type
    for kind, complaint in ((GGMLQuantizationType.Q8_K.value, "(ggml type 15)"), (999, "(ggml type 999)")):
        content[at : at + 4] = struct.pack("<I", kind)
        path.write_bytes(content)
        message = refusal(path)
        assert "self_attn.v_proj.weight" in message and complaint in message and "Q4_1" in message


def test_without_the_package_the_remedy_is_said(write, monkeypatch):
    path, real = write(), builtins.__import__

    def no_gguf(name, *args, **kwargs):
        if name == "gguf":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_gguf)
    assert "pip install 'tokenmill[gguf]'" in refusal(path)


def test_swapped_weights_change_the_version(write, tensors):
    """S74"""
    before = load_model(write()).weights_version
    assert load_model(write()).weights_version == before
    tensors[Q0][0, 0] += 0.01
    assert load_model(write()).weights_version != before


def test_names_round_trip():
    from tests.models.gguf_files import gguf_name

    for name in llama_tensors(CONFIG):
        assert gguf_names.hf_name(gguf_name(name)) == name
    for odd in ("blk.x.attn_q.weight", "rope_freqs.weight", "blk.0.strange.weight", "v"):
        assert gguf_names.hf_name(odd) == odd
