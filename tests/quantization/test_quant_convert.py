"""`tokenmill quantize`: what it writes loads and is what rounding says; nothing half-written is ever loadable."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import llama_tensors, tiny_llama_config, write_tiny_llama
from tokenmill.cli.main import main
from tokenmill.core.errors import CheckpointError, ConfigError, ResourceError
from tokenmill.kernels.quantized.rounding import quantize
from tokenmill.models.quantization import convert
from tokenmill.models.quantization.checkpoint import expand_quantized
from tokenmill.models.quantization.convert import Settings, quantize_checkpoint
from tokenmill.models.quantization.layouts import _WRITABLE
from tokenmill.models.registry import load_model
from tokenmill.models.safetensors_write import SafetensorsWriter
from tokenmill.models.weights import open_checkpoint

PAIRS = [(layout, scheme) for layout, schemes in _WRITABLE.items() for scheme in schemes]


def silent(what, done, total):
    assert 0 <= done <= total


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = write_tiny_llama(tmp_path_factory.mktemp("plain"), vocab_size=64, num_layers=2)
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def convert_to(folder, source, scheme, layout="compressed-tensors", recipe="max", **settings):
    return quantize_checkpoint(open_checkpoint(source), folder, Settings(scheme, recipe, layout, **settings), silent)


@pytest.mark.parametrize(("layout", "scheme"), PAIRS)
def test_what_is_written_loads_as_the_rounded_weights(tmp_path, source, layout, scheme, monkeypatch):
    monkeypatch.setattr(convert, "_CHUNK_VALUES", 128 * 64)  # several parts per tensor
    report = convert_to(tmp_path / "out", source, scheme, layout)
    checkpoint = expand_quantized(open_checkpoint(tmp_path / "out"))
    plain = open_checkpoint(source)
    assert dict(checkpoint.shapes()) == dict(plain.shapes())
    assert report["num_tensors"] == 14 and len(report["tensors"]) == 14
    for line in report["tensors"]:
        weight, got = plain.read(line["name"]), checkpoint.read(line["name"])
        error = float((got - weight).norm() / weight.norm())
        assert error == pytest.approx(line["relative_error"], rel=1e-4) and 0 < error < 0.2
    down = "model.layers.1.mlp.down_proj.weight"
    want = quantize(plain.read(down), scheme).dequantize()
    assert torch.allclose(checkpoint.read(down), want, rtol=2e-7, atol=0)
    assert torch.equal(checkpoint.read("lm_head.weight"), plain.read("lm_head.weight"))
    assert load_model(tmp_path / "out", dtype="float32").model.vocab_size == 64
    assert (tmp_path / "out" / "tokenizer_config.json").is_file() and not list((tmp_path / "out").glob(".*"))


def test_layers_that_are_computed_as_one_share_the_tensor_scale(tmp_path, source):
    convert_to(tmp_path / "out", source, "nvfp4", "modelopt")
    stored = load_file(tmp_path / "out" / "part-00001.safetensors")
    scales = [stored[f"model.layers.0.self_attn.{n}_proj.weight_scale_2"] for n in "qkv"]
    assert scales[0] == scales[1] == scales[2]
    plain = load_file(source / "model.safetensors")
    top = max(plain[f"model.layers.0.self_attn.{n}_proj.weight"].abs().max() for n in "qkv")
    assert float(scales[0]) == pytest.approx(float(top) / 2688, rel=1e-6)
    config = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert (
        config["quantization"]["quant_algo"] == "W4A16_NVFP4" and "lm_head" in config["quantization"]["exclude_modules"]
    )


def test_interrupted_and_run_again_gives_the_same_files_and_is_never_loadable_between(tmp_path, source):
    settings = {"shard_bytes": 30_000}
    convert_to(tmp_path / "whole", source, "nvfp4", "modelopt", **settings)
    files = sorted(f.name for f in (tmp_path / "whole").glob("*.safetensors"))
    assert len(files) >= 3
    written = []

    class StoppedError(Exception):
        pass

    def stop_in_third(what, done, total):
        written.append(what)
        if len(list((tmp_path / "out").glob("part-*.safetensors"))) == 2:
            raise StoppedError

    job = Settings("nvfp4", "max", "modelopt", **settings)
    with pytest.raises(StoppedError):
        quantize_checkpoint(open_checkpoint(source), tmp_path / "out", job, stop_in_third)
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_model(tmp_path / "out")
    kept = {f.name: f.stat().st_mtime_ns for f in (tmp_path / "out").glob("part-*.safetensors")}
    quantize_checkpoint(open_checkpoint(source), tmp_path / "out", job, silent)
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == when for name, when in kept.items())
    for name in ("quantize_report.json", "config.json", "model.safetensors.index.json"):
        assert json.loads((tmp_path / "out" / name).read_text()) == json.loads((tmp_path / "whole" / name).read_text())


def test_going_on_with_other_settings_is_refused(tmp_path, source):
    def stop(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(
            open_checkpoint(source), tmp_path / "out", Settings("int8", "max", "compressed-tensors"), stop
        )
    with pytest.raises(ConfigError, match="another conversion that was not finished"):
        convert_to(tmp_path / "out", source, "fp8")
    convert_to(tmp_path / "out", source, "int8")
    with pytest.raises(ConfigError, match="holds a model already"):
        convert_to(tmp_path / "out", source, "int8")


def test_a_full_disk_leaves_nothing_loadable_and_says_so(tmp_path, source, monkeypatch):
    def full(self, name, rows):
        raise self._failed(OSError(28, "No space left on device"))

    monkeypatch.setattr(SafetensorsWriter, "append", full)
    with pytest.raises(ResourceError, match="No space left on device"):
        convert_to(tmp_path / "out", source, "int8")
    assert not list((tmp_path / "out").glob("*.safetensors*")) and not (tmp_path / "out" / "config.json").exists()


def test_a_really_full_disk(tmp_path):
    """The file-size limit of a process stands for the disk: writes fail half way with the system's own error."""
    path = tmp_path / "a.safetensors"
    code = (
        "import resource, signal, torch; from pathlib import Path\n"
        "from tokenmill.models.safetensors_write import SafetensorsWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"w = SafetensorsWriter(Path({str(path)!r}), {{'a': (torch.float32, (8192,))}}, {{}})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert "cannot be written (File too large)" in done.stderr, done.stderr[-500:]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path, bad, name):
    config = tiny_llama_config(vocab_size=64, num_layers=1)
    tensors = llama_tensors(config)
    tensors[name][3, 5] = bad
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name}\[3, 5\] is"):
        convert_to(tmp_path / "out", tmp_path / "in", "nvfp4", "modelopt")
    assert not list((tmp_path / "out").glob("*.safetensors*"))


def test_a_quantised_source_is_refused(tmp_path, source):
    convert_to(tmp_path / "a", source, "int8")
    with pytest.raises(CheckpointError, match=r"quantised already \(compressed-tensors\)"):
        convert_to(tmp_path / "b", tmp_path / "a", "nvfp4", "modelopt")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    del config["quantization_config"]  # by its tensors, too
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="quantised already"):
        convert_to(tmp_path / "b", tmp_path / "a", "nvfp4", "modelopt")
    assert not (tmp_path / "b").exists()


def test_exclude_and_experts_only(tmp_path, source):
    report = convert_to(tmp_path / "out", source, "int4", exclude=("*.self_attn.*",))
    assert {line["name"].split(".")[3] for line in report["tensors"]} == {"mlp"}
    with pytest.raises(ConfigError, match="no experts"):
        convert_to(tmp_path / "none", source, "int4", experts_only=True)


def test_another_nibble_order_is_refused(tmp_path, source):
    convert_to(tmp_path / "out", source, "nvfp4", "modelopt")
    file = tmp_path / "out" / "part-00001.safetensors"
    save_file(load_file(file), file, metadata={"nibble_order": "odd_low"})
    with pytest.raises(CheckpointError, match="nibble_order is 'odd_low'"):
        load_model(tmp_path / "out")


def test_command(tmp_path, source, capsys):
    assert main(["quantize", str(source), str(tmp_path / "a"), "--format", "mxfp4", "--recipe", "mse", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["settings"]["layout"] == "compressed-tensors"
    assert main(["quantize", str(source), str(tmp_path / "b"), "--format", "nvfp4"]) == 0
    assert "relative error" in capsys.readouterr().out and (tmp_path / "b" / "hf_quant_config.json").is_file()
    for arguments, message in (
        (["--format", "fp6"], "--format fp6 is not possible: choose nvfp4"),
        (["--format", "nvfp4", "--recipe", "awq"], "recipe awq is not available yet"),
        (["--format", "mxfp4", "--recipe", "four_over_six"], "not possible for mxfp4"),
        (["--format", "int4", "--layout", "modelopt"], "the modelopt layout has no int4"),
        (["--format", "int4", "--calib", "x"], "no recipe that looks at activations"),
    ):
        assert main(["quantize", str(source), str(tmp_path / "c"), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path):
    """A tensor of 1.1 GB needs no more than a small one: most of what is resident is torch itself."""
    config = tiny_llama_config(vocab_size=64, num_layers=1, hidden_size=8192, intermediate_size=65536, num_heads=64)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    shapes = {"model.layers.0.mlp.down_proj.weight": (torch.bfloat16, (8192, 65536)), "a.bias": (torch.bfloat16, (4,))}
    with SafetensorsWriter(tmp_path / "in" / "model.safetensors", shapes, {}) as writer:
        for _ in range(64):
            writer.append("model.layers.0.mlp.down_proj.weight", torch.randn(128, 65536).bfloat16())
        writer.append("a.bias", torch.zeros(4, dtype=torch.bfloat16))
    code = (
        "import sys, resource; from tokenmill.cli.main import main\n"
        f"code = main(['quantize', {str(tmp_path / 'in')!r}, {str(tmp_path / 'out')!r}, '--format', 'nvfp4'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stderr.split()[-1]) < 1_000_000  # kB
    shutil.rmtree(tmp_path)
