"""v4-nano before training: its config, freshly initialised weights, and how they are written and read again.

The tensors are those of tokenmill.models.deepseek_v4; hub names come from there, too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.weights import Weights, allocate, destinations

CONFIG_PATH = Path(__file__).with_name("config.json")
_RELEASED_HEAD_DIM = 512
#: Tensors that the released checkpoints keep in float32, by the last part of their name.
_WIDE = ("attn_sink", "ape", "bias", "fn", "base", "scale")


def read_config(path: Path = CONFIG_PATH) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return data


def fresh(config: DeepseekV4Config, seed: int) -> Weights:
    """Everything drawn from one generator, on the default device. Layers that write to the streams begin at zero."""
    device = torch.get_default_device()
    weights = allocate(config, torch.float32, num_mtp=config.num_nextn_predict_layers, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    for name, tensor in destinations(config, weights).items():
        _initialise(name, tensor, config, generator)
    return weights


def _initialise(name: str, tensor: Tensor, config: DeepseekV4Config, generator: torch.Generator) -> None:
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    if leaf == "tid2eid":
        order = torch.rand(tensor.shape[0], config.n_routed_experts, generator=generator).argsort(-1)
        tensor.copy_(order[:, : tensor.shape[1]])
    elif leaf == "kv_norm" or name.endswith("attn.compressor.norm.weight"):
        # Queries and keys are normalised, so a score is at most sqrt(head_dim) x this: as sharp as in the released
        # models, whose heads are 512 wide. With 1.0 narrow heads stay diffuse and copying is not learnt.
        tensor.fill_((_RELEASED_HEAD_DIM / config.head_dim) ** 0.5)
    elif leaf.endswith("norm"):
        tensor.fill_(1.0)
    elif leaf in ("attn_sink", "bias", "ape"):
        tensor.zero_()
    elif leaf.startswith("hc_"):
        _initialise_connection(leaf, tensor, config.hc_mult, generator)
    elif leaf in ("wo_b", "w2"):
        tensor.zero_()
    elif leaf in ("embed", "head"):
        tensor.normal_(0.0, 0.02 if leaf == "head" else 0.5, generator=generator)
    else:
        tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)


def _initialise_connection(leaf: str, tensor: Tensor, n: int, generator: torch.Generator) -> None:
    """Streams are read with about equal weights, written with about 1 and kept apart; noise makes them differ."""
    if leaf.endswith("_fn"):
        tensor.normal_(0.0, 0.02, generator=generator)
    elif leaf.endswith("_scale"):
        tensor.fill_(0.1)
    else:
        tensor.normal_(0.0, 0.3, generator=generator)
        tensor[:n] -= 1.1  # sigmoid(-1.1) = 1/4
        if tensor.numel() > n:
            tensor[2 * n :].view(n, n).diagonal().add_(3.0)


def export(folder: Path, config: dict[str, Any], weights: Weights, tokenizer: Path) -> None:
    """A hub-style folder in bfloat16 with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    parsed = DeepseekV4Config.from_dict(config)
    tensors = {name: _stored(name, tensor) for name, tensor in destinations(parsed, weights).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    ends = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n", "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)


def _stored(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.detach().contiguous()
    leaf = name.rpartition(".")[2]
    is_wide = leaf.removeprefix("hc_attn_").removeprefix("hc_ffn_").removeprefix("hc_head_") in _WIDE
    return tensor.detach().to(torch.float32 if is_wide else torch.bfloat16).contiguous().clone()


def load(folder: Path) -> tuple[dict[str, Any], Weights]:
    """What `export` wrote, in float32 on the default device."""
    config = read_config(folder / "config.json")
    parsed = DeepseekV4Config.from_dict(config)
    device = torch.get_default_device()
    weights = allocate(parsed, torch.float32, num_mtp=parsed.num_nextn_predict_layers, device=device)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in destinations(parsed, weights).items():
        tensor.copy_(tensors[name])
    return config, weights
