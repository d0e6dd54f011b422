"""Checkpoint folders: what loads, and how everything broken is refused in one message that says what is wrong."""

import json
import os
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.drive import Driver
from tests.tiny import write_tiny_llama
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.models.loading import Loader, is_finite
from tokenmill.models.registry import load_model
from tokenmill.models.safetensors_file import DTYPES, SafetensorsFile
from tokenmill.models.weights import listed, open_checkpoint, sample_ranges

Q0 = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path):
    return write_tiny_llama(tmp_path / "tiny")


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def shard(folder):
    """Split the folder's tensors over two files with an index; returns the index."""
    tensors = load_file(folder / "model.safetensors")
    os.remove(folder / "model.safetensors")
    names = sorted(tensors)
    files = {"a.safetensors": names[:10], "b.safetensors": names[10:]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def refusal(folder, **options):
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, **options)
    assert "\n" not in caught.value.message, "one line"
    return caught.value.message


def test_a_folder_loads_with_its_facts(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    (folder / "tokenizer.json").write_text("{}")
    seen = []
    loaded = load_model(folder, dtype="float32", on_progress=seen.append)
    assert (loaded.architecture, loaded.dtype, loaded.default_block_size) == ("llama", "float32", 16)
    assert loaded.eos_token_ids == (7, 9) and loaded.tokenizer_path == folder
    assert loaded.model.vocab_size == 256 and loaded.model.max_model_len == 4096
    assert seen == sorted(seen) and seen[-1] == 1.0 and len(seen) > 10


def test_eos_falls_back_to_the_config_and_may_be_absent(folder):
    assert load_model(folder).eos_token_ids == (1,)
    assert load_model(folder).tokenizer_path is None
    change_config(folder, eos_token_id=None)
    assert load_model(folder).eos_token_ids == ()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_stored_dtypes_are_converted(tmp_path, stored, token_ids):
    folder = write_tiny_llama(tmp_path, dtype=stored)
    as_float32 = write_tiny_llama(tmp_path / "wide")
    change_tensors(as_float32, lambda tensors: tensors.update({n: t.to(stored).float() for n, t in tensors.items()}))
    logits = [
        Driver(load_model(path, dtype="float32", deterministic=True).model, num_seqs=1, max_len=64).step(
            {0: token_ids[:20]}
        )
        for path in (folder, as_float32)
    ]
    assert torch.equal(*logits)


def test_shards_load_like_one_file(folder, token_ids):
    def logits():
        model = load_model(folder, dtype="float32", deterministic=True).model
        return Driver(model, num_seqs=1, max_len=64).step({0: token_ids[:20]})

    whole = logits()
    shard(folder)
    assert torch.equal(logits(), whole)


def test_a_single_file_of_another_name_is_found(folder):
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    load_model(folder)


def test_missing_extra_and_misshaped_tensors_are_listed_together(folder):
    def change(tensors):
        for i in range(2):
            for part in ("q", "k", "v", "o"):
                del tensors[f"model.layers.{i}.self_attn.{part}_proj.weight"]
            for part in ("gate", "up", "down"):
                del tensors[f"model.layers.{i}.mlp.{part}_proj.weight"]
        tensors["model.norm.weight"] = torch.zeros(65)
        tensors["visual.patch.weight"] = torch.zeros(3)

    change_tensors(folder, change)
    message = refusal(folder)
    assert "missing (14): model.layers.0" in message and "and 4 more" in message
    assert "unknown (1): visual.patch.weight" in message
    assert "misshaped (1): model.norm.weight (65,) instead of (64,)" in message


def test_a_tied_head_and_old_rotary_buffers_are_ignored(folder):
    change_config(folder, tie_word_embeddings=True)
    change_tensors(folder, lambda t: t.update({"model.layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load_model(folder)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16], ids=str)
def test_values_that_are_not_finite_are_refused(tmp_path, value, stored):
    folder = write_tiny_llama(tmp_path, dtype=stored)

    def change(tensors):
        tensors[Q0][3, 5] = value
        tensors["model.norm.weight"][0] = value

    change_tensors(folder, change)
    message = refusal(folder)
    assert "not finite" in message and Q0 in message and "model.norm.weight" in message


def test_finite_means_no_infinity_that_cancels():
    assert is_finite(torch.zeros(0)) and is_finite(torch.full((100,), 1e30))
    assert not is_finite(torch.tensor([torch.inf, -torch.inf, 1.0]))


def test_absent_shards_are_named(folder):
    shard(folder)
    os.remove(folder / "b.safetensors")
    assert "names files that are not there: b.safetensors" in refusal(folder)


def test_an_index_may_not_leave_the_folder(folder):
    index = shard(folder)
    index["weight_map"][Q0] = "../a.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder.parent / "a.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    assert "names files that are not there: ../a.safetensors" in refusal(folder)


def test_an_index_that_promises_too_much_is_refused(folder):
    index = shard(folder)
    index["weight_map"]["model.ghost"] = "a.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "promises tensors that its files lack: model.ghost" in refusal(folder)


@pytest.mark.parametrize("content", ['{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "{}"])
def test_a_malformed_index_is_refused(folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    assert "weight_map must map" in refusal(folder)


def test_no_or_many_files_without_an_index_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "two.safetensors").write_bytes((folder / "one.safetensors").read_bytes())
    assert "has 2 safetensors files and no model.safetensors.index.json" in refusal(folder)
    for name in ("one", "two"):
        os.remove(folder / f"{name}.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert "has 0 safetensors files" in refusal(folder) and ".bin" in refusal(folder)


def test_every_truncation_is_refused(folder):
    """Cut anywhere, in the length, the header or the data: never a crash, never a model."""
    whole = (folder / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:length])
        message = refusal(folder)
        assert "model.safetensors" in message and "fetch the model again" in message


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"x": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (b"not json", "cannot be read"),
        (b"[1, 2]", "cannot be read"),
        (json.dumps({"x": {"dtype": "F32"}}).encode(), "cannot be read"),
        (json.dumps(entry(shape=(2, 3))).encode(), "cannot fill bytes"),
        (json.dumps(entry(shape=(-2, -2))).encode(), "cannot fill bytes"),
        (json.dumps(entry(offsets=(-8, 8))).encode(), "cannot fill bytes"),
        (json.dumps(entry(offsets=(8, 24))).encode(), "ends at byte"),
        (json.dumps(entry(dtype="F7")).encode(), "dtype F7; possible: F64"),
    ],
)
def test_corrupt_headers_are_refused(tmp_path, header, complaint):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(CheckpointError, match=complaint):
        SafetensorsFile(path)


def test_all_dtypes_are_read_as_stored(tmp_path):
    """Also those that only quantised checkpoints use; an empty tensor has no bytes to view."""
    tensors = {name: torch.arange(4).to(dtype) for name, dtype in DTYPES.items()}
    tensors["empty"] = torch.empty(0, 3)
    save_file(tensors, tmp_path / "all.safetensors")
    file = SafetensorsFile(tmp_path / "all.safetensors")
    for name, tensor in tensors.items():
        got = file.read(name)
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8)) if tensor.numel() else True


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_broken_config_is_refused(folder, content):
    (folder / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "config.json" in refusal(folder)


def test_paths_that_hold_no_model_are_refused(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert "config.json is missing" in refusal(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"x")
    assert "neither a folder nor a .gguf file" in refusal(tmp_path / "model.onnx")


def test_an_unknown_dtype_is_a_config_error(folder):
    with pytest.raises(ConfigError, match="float32 or bfloat16"):
        load_model(folder, dtype="float16")


def test_weights_swapped_in_place_change_the_version(folder):
    """S74: blocks computed with old weights must never be found again, so the version must differ."""
    before = load_model(folder).weights_version
    assert load_model(folder).weights_version == before, "same content, same version"
    write_tiny_llama(folder, seed=1)
    swapped = load_model(folder).weights_version
    change_tensors(folder, lambda tensors: tensors[Q0][0].mul_(1.001))
    tuned = load_model(folder).weights_version
    change_config(folder, rope_theta=5000.0)
    turned = load_model(folder).weights_version
    assert len({before, swapped, tuned, turned}) == 4


def test_settings_that_change_cached_bytes_change_the_version(folder):
    versions = {
        load_model(folder, dtype=dtype, deterministic=deterministic).weights_version
        for dtype in ("float32", "bfloat16")
        for deterministic in (False, True)
    }
    assert len(versions) == 4


def test_digests_sample_large_tensors_at_both_ends_and_in_the_middle():
    assert sample_ranges(8, 8 + 2**16) == [(8, 8 + 2**16)]
    ranges = sample_ranges(100, 100 + 2**20)
    assert ranges[0][0] == 100 and ranges[-1][1] == 100 + 2**20 and len(ranges) == 3
    assert sum(end - begin for begin, end in ranges) < 2**13


def test_only_ten_names_are_listed():
    assert listed([str(i) for i in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


def test_a_loader_must_read_everything_it_wanted(folder):
    checkpoint = open_checkpoint(folder)
    loader = Loader(checkpoint, checkpoint.shapes(), torch.float32)
    loader.tensor(Q0)
    with pytest.raises(AssertionError, match="never read"):
        loader.finish()


MEASURE = """
import sys, torch
from tokenmill.models.registry import load_model
def anonymous_bytes():
    lines = open("/proc/self/status").read().splitlines()
    values = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "VmHWM", "RssFile")))
    return {name: int(value.split()[0]) * 1024 for name, value in values.items()}
load_model(sys.argv[1], backend="cpu")   # warm: code pages, thread pools
open("/proc/self/clear_refs", "w").write("5")
before = anonymous_bytes()["RssAnon"] + anonymous_bytes()["RssFile"]
model = load_model(sys.argv[2], backend="cpu")
print(anonymous_bytes()["VmHWM"] - before, model.model.num_parameters)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's memory counters")
def test_loading_peaks_at_the_weights_and_little_more(tmp_path):
    """Peak, mapped pages included: weights, one fused projection in plain and packed form, and what a layer leaves
    unused in the allocator until it is trimmed."""
    tiny = write_tiny_llama(tmp_path / "tiny")
    big = write_tiny_llama(
        tmp_path / "big", dtype=torch.bfloat16, hidden_size=1024, intermediate_size=4096, num_layers=4, vocab_size=4096
    )
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tiny), str(big)], capture_output=True, text=True, check=True, timeout=50
    ).stdout
    peak, num_parameters = map(int, output.split())
    weights, largest = 2 * num_parameters, 2 * 2 * 4096 * 1024
    assert peak < weights + 3 * largest, f"{peak / 1e6:.0f} MB for {weights / 1e6:.0f} MB of weights"
