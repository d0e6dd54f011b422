"""Configuration of a DFlash drafter, as its public checkpoints write it; torch-free.

A drafter is a few Qwen3-style layers over the target's embedding and output head. It never computes a context of its
own: features of the target's layers become keys and values of the context, and one pass fills a block of masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import CheckpointError
from tokenmill.models.hf_config import ConfigReader

ARCHITECTURE = "DFlashDraftModel"
GROUP = "dflash"


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """
    block_size        positions of one pass: the newest token and block_size - 1 masks
    target_layer_ids  whose outputs are the features; index i: after layer i
    num_target_layers of the model it was trained for
    windows           per layer: context tokens before a position that it sees; None: all
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    windows: tuple[int | None, ...]

    @property
    def num_layers(self) -> int:
        return len(self.windows)


def read_dflash_config(config: dict[str, Any], source: str | Path) -> DFlashConfig:
    """CheckpointError names the field that is missing, impossible or not supported."""
    fields = ConfigReader(config, source)
    architecture = (fields.raw("architectures") or [None])[0]
    if architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{source}: config.architectures[0]={architecture!r} is no DFlash drafter: possible: {ARCHITECTURE}"
        )
    own = fields.section("dflash_config")
    fields.choice("hidden_act", ["silu"], "silu")
    if fields.boolean("attention_bias", False):
        fields.fail("attention_bias", "false")
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers, num_target = fields.integer("num_hidden_layers"), fields.integer("num_target_layers")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        fields.fail("num_key_value_heads", f"a divisor of num_attention_heads={num_heads}")
    layer_ids = own.raw("target_layer_ids") or spread_layers(num_target, num_layers)
    if not all(isinstance(i, int) and 0 <= i < num_target for i in layer_ids):
        own.fail("target_layer_ids", f"layers 0 to {num_target - 1}")
    block_size = own.integer("block_size", 0, low=0) or fields.integer("block_size")
    if block_size < 2:
        fields.fail("block_size", "an integer from 2 up")
    return DFlashConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.integer("head_dim", hidden_size // num_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(fields),
        block_size=block_size,
        mask_token_id=own.integer("mask_token_id", low=0),
        target_layer_ids=tuple(layer_ids),
        num_target_layers=num_target,
        windows=_windows(fields, num_layers),
    )


def spread_layers(num_target: int, num_draft: int) -> list[int]:
    """Where a checkpoint does not say: evenly from the second layer to the fourth last (z-lab/dflash, model utils)."""
    if num_draft == 1:
        return [num_target // 2]
    first, last = 1, max(1, num_target - 3)
    return [round(first + i * (last - first) / (num_draft - 1)) for i in range(num_draft)]


def _rope_theta(fields: ConfigReader) -> float:
    nested = fields.section("rope_parameters")
    kind = nested.raw("rope_type", "default")
    if kind != "default" or "rope_scaling" in fields:
        fields.fail("rope_scaling" if "rope_scaling" in fields else "rope_parameters", "plain rotary frequencies")
    return nested.number("rope_theta", fields.number("rope_theta", 10000.0))


def _windows(fields: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    kinds = fields.raw("layer_types") or ["full_attention"] * num_layers
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        fields.fail("layer_types", f"{num_layers} of full_attention, sliding_attention")
    return tuple(fields.integer("sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def cache_group(config: DFlashConfig, block_size: int, bytes_per_value: int) -> CacheGroup:
    """Keys and values of the context in every layer; a hit may miss them."""
    row_bytes = config.num_layers * 2 * config.num_kv_heads * config.head_dim * bytes_per_value
    return CacheGroup(GROUP, GroupKind.DRAFT, row_bytes * block_size, is_required=False)
