"""A DeepSeek V4 that exists only in memory: random weights on a config made for measuring long contexts.

Not responsible for: meaning (it answers nonsense), files (nothing is written).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.presets import FLASH_JSON
from tokenmill.models.deepseek_v4.weights import allocate, destinations

#: All tensors are parts of one pool of normal numbers, begun at different places within this many: drawing each one
#: afresh takes longer than measuring.
_NUM_OFFSETS = 2**16

#: Attention as wide as in the released models (512-wide entries, 64 index heads of 128), everything else narrower.
CONTEXT_JSON: dict[str, Any] = {name: value for name, value in FLASH_JSON.items() if "quant" not in name} | {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 7,
    "num_attention_heads": 16,
    "q_lora_rank": 256,
    "o_groups": 4,
    "o_lora_rank": 256,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "num_hash_layers": 1,
    "compress_ratios": [0, 4, 128, 4, 128, 4, 128, 0],
    "expert_dtype": None,
}


class SyntheticCheckpoint:
    """Implements models/weights.Checkpoint; a tensor is made when it is read, the same one each time."""

    def __init__(self, config: Mapping[str, Any] = CONTEXT_JSON, seed: int = 0) -> None:
        self.path = Path("synthetic-deepseek-v4")
        self.config = {name: value for name, value in config.items() if value is not None}
        self.tokenizer_path: Path | None = None
        self.eos_token_ids: tuple[int, ...] = (1,)
        self._seed = seed
        self._parsed = DeepseekV4Config.from_dict(self.config)
        weights = allocate(self._parsed, torch.bfloat16, num_mtp=self._parsed.num_nextn_predict_layers, device="meta")
        self._like = destinations(self._parsed, weights)
        largest = max(tensor.numel() for tensor in self._like.values())
        self._pool = torch.randn(largest + _NUM_OFFSETS, generator=torch.Generator().manual_seed(seed))

    def digest(self) -> str:
        return f"synthetic-{self._seed}"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._like.items()}

    def release(self, name: str) -> None:
        pass

    def read(self, name: str) -> Tensor:
        """Linear layers keep the size of what goes through them; scales and norms are about 1."""
        shape, leaf = self._like[name].shape, name.removesuffix(".weight").rpartition(".")[2]
        offset = zlib.crc32(name.encode())
        if leaf == "tid2eid":
            generator = torch.Generator().manual_seed(self._seed + offset)
            order = torch.rand(shape[0], self._parsed.n_routed_experts, generator=generator).argsort(dim=-1)
            return order[:, : shape[1]].contiguous()
        values = self._pool[offset % _NUM_OFFSETS :][: shape.numel()].view(shape)
        if leaf.endswith(("norm", "_scale")):
            return 1.0 + 0.1 * values
        return values * shape[-1] ** -0.5 if len(shape) > 1 and leaf not in ("ape", "embed") else values
