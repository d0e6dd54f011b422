"""What run.py compares: logits of a checkpoint as tokenmill loads it, and of plain weights that others decoded."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.models.drive import Driver
from tests.tiny import write_tiny_llama
from tokenmill.models.quantization.checkpoint import expand_quantized
from tokenmill.models.registry import load_model
from tokenmill.models.weights import open_checkpoint

_IDS = list(range(2, 66))
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def write_plain(folder: Path) -> Path:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}
    return write_tiny_llama(folder, dtype=torch.bfloat16, **sizes)


def logits_differ_by(folder: Path, decoded: Path | None) -> float:
    """Relative to the largest logit. decoded: the same weights by another decoder; None: decoded below."""
    tensors = load_file(decoded) if decoded else _decode(load_file(folder / "model.safetensors"))
    with tempfile.TemporaryDirectory() as plain:
        config = json.loads((folder / "config.json").read_text())
        config.pop("quantization_config", None)
        Path(plain, "config.json").write_text(json.dumps(config))
        save_file(tensors, Path(plain, "model.safetensors"))
        want = _logits(Path(plain))
    got = _logits(folder)
    return float((got - want).abs().max() / want.abs().max())


def _logits(folder: Path) -> torch.Tensor:
    model = load_model(folder, deterministic=True, dtype="float32").model
    return Driver(model, num_seqs=1, max_len=64).step({0: _IDS})


def weights_differ_by(folder: Path, decoded: Path) -> float:
    """Largest difference of a weight, relative to its tensor's largest."""
    ours, theirs = expand_quantized(open_checkpoint(folder)), load_file(decoded)
    worst = 0.0
    for name in ours.shapes():
        got = ours.read(name).float()
        worst = max(worst, float((got - theirs[name]).abs().max() / got.abs().max()))
    return worst


def _decode(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the definition of the layouts, in float32, sharing nothing with the package."""
    plain = {}
    for name, tensor in stored.items():
        module, _, ending = name.rpartition(".")
        if ending not in ("weight", "weight_packed"):
            continue
        scale = stored.get(f"{module}.weight_scale")
        if scale is None:
            plain[name] = tensor.float()
        elif tensor.dtype is torch.uint8:
            plain[f"{module}.weight"] = _decode_four_bits(tensor, _scales(stored, module, scale))
        else:
            plain[name] = tensor.float() * scale.float()
    return plain


def _scales(stored: dict[str, torch.Tensor], module: str, scale: torch.Tensor) -> torch.Tensor:
    if scale.dtype is torch.uint8:
        return torch.exp2(scale.double() - 127).float()
    if f"{module}.weight_scale_2" in stored:  # ModelOpt
        return scale.float() * stored[f"{module}.weight_scale_2"]
    return scale.float() / stored[f"{module}.weight_global_scale"]


def _decode_four_bits(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
    return (_E2M1[codes].unflatten(1, (scales.shape[1], -1)) * scales[..., None]).flatten(1)
