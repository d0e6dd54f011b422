"""A DFlash drafter: target features in, keys and values of the context; a block of masks in, guesses for all of it.

Not responsible for: which rows are where (engine/speculative/dflash), embedding and output head (the target's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.rope.api import RotaryTable
from tokenmill.kernels.rope.frequencies import plain
from tokenmill.models.allocate import lazy_zeros
from tokenmill.models.dflash.config import DFlashConfig
from tokenmill.models.loading import Loader
from tokenmill.models.weights import Checkpoint

HEAD, ID_MAP = "lm_head.weight", "d2t"


@dataclass(frozen=True, slots=True)
class DFlashLayer:
    """kv: keys of all heads, then values, [2 G D, C]; q [H D, C]; gate_up [2 F, C]."""

    attention_norm: Tensor
    q: Tensor
    kv: Tensor
    o: Tensor
    q_norm: Tensor
    k_norm: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


def shapes(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the public layout, by name."""
    c, hidden, inner = config, config.hidden_size, config.intermediate_size
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (c.num_heads * c.head_dim, hidden),
        "self_attn.k_proj": (c.num_kv_heads * c.head_dim, hidden),
        "self_attn.v_proj": (c.num_kv_heads * c.head_dim, hidden),
        "self_attn.o_proj": (hidden, c.num_heads * c.head_dim),
        "self_attn.q_norm": (c.head_dim,),
        "self_attn.k_norm": (c.head_dim,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    wanted = {f"layers.{i}.{name}.weight": shape for i in range(c.num_layers) for name, shape in layer.items()}
    wanted["fc.weight"] = (hidden, len(c.target_layer_ids) * hidden)
    return wanted | {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}


class DFlashDrafter:
    """
    head      rows of a head of its own [V', C], with id_map [V'] to the target's ids; None: the target's head
    """

    def __init__(self, config: DFlashConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self.config, self.dtype = config, dtype
        wanted, found = shapes(config), checkpoint.shapes()
        has_head = HEAD in found and ID_MAP in found
        if has_head:
            wanted |= {HEAD: (found[HEAD][0], config.hidden_size)}
        loader = Loader(checkpoint, wanted, dtype, ignored=["embed_tokens.weight", "t2d", ID_MAP, HEAD])
        self.fc = loader.tensor("fc.weight")
        self.hidden_norm, self.norm = loader.tensor("hidden_norm.weight"), loader.tensor("norm.weight")
        self.layers = [_load_layer(loader, f"layers.{i}.") for i in range(config.num_layers)]
        self.head = loader.tensor(HEAD) if has_head else None
        self.id_map = _read_map(checkpoint, config) if has_head else None
        loader.finish()
        self._rotary = RotaryTable(plain(config.head_dim, config.rope_theta))

    def allocate(self, num_blocks: int, block_size: int) -> list[Tensor]:
        """Per layer [blocks, block_size, 2, G, D]: keys (turned), values."""
        c = self.config
        shape = (num_blocks, block_size, 2, c.num_kv_heads, c.head_dim)
        return [lazy_zeros(shape, self.dtype) for _ in self.layers]

    def inject(self, features: Tensor, positions: Tensor, slots: Tensor, caches: Sequence[Tensor]) -> None:
        """features [n, L' C] of tokens at `positions` become context rows at physical `slots` of every layer."""
        c = self.config
        context = self._rms(F.linear(features.to(self.dtype), self.fc), self.hidden_norm)
        cos, sin = self._rotary.rows(positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            rows = F.linear(context, layer.kv).view(-1, 2, c.num_kv_heads, c.head_dim)
            keys = turn(self._rms(rows[:, 0], layer.k_norm), cos, sin)
            cache.flatten(0, 1)[slots] = torch.stack((keys, rows[:, 1]), dim=1)

    def draft(
        self, embedded: Tensor, starts: Sequence[int], context: Sequence[tuple[int, Tensor]], caches: Sequence[Tensor]
    ) -> Tensor:
        """One pass over a block per sequence.

        embedded  [B, K, C] target embeddings of the newest token and K - 1 masks
        starts    position of each newest token
        context   per sequence: first position that has a row, and the slots of all rows up to starts[b] - 1
        -> [B, K, C] normalised
        """
        num_seqs, size, _ = embedded.shape
        x = embedded.to(self.dtype).flatten(0, 1)
        positions = torch.tensor(starts)[:, None] + torch.arange(size)
        cos, sin = self._rotary.rows(positions.flatten())
        c = self.config
        for layer, cache, window in zip(self.layers, caches, c.windows, strict=True):
            h = self._rms(x, layer.attention_norm)
            q = turn(self._rms(F.linear(h, layer.q).view(-1, c.num_heads, c.head_dim), layer.q_norm), cos, sin)
            rows = F.linear(h, layer.kv).view(-1, 2, c.num_kv_heads, c.head_dim)
            keys = turn(self._rms(rows[:, 0], layer.k_norm), cos, sin)
            flat = cache.flatten(0, 1)
            mixed = []
            for b in range(num_seqs):
                own = slice(b * size, (b + 1) * size)
                before = flat[context[b][1]]
                k = torch.cat((before[:, 0], keys[own]))
                v = torch.cat((before[:, 1], rows[own, 1]))
                mask = _window_mask(window, context[b][0], starts[b], size)
                mixed.append(_attend(q[own], k, v, mask))
            x = x + F.linear(torch.cat(mixed).flatten(1), layer.o)
            gate, up = F.linear(self._rms(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return self._rms(x, self.norm).view(num_seqs, size, -1)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), self.config.rms_norm_eps).to(self.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [K, H, D], k and v [n, G, D] -> [K, H, D]; every query sees every key that `mask` [K, n] allows."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def _window_mask(window: int | None, first: int, start: int, size: int) -> Tensor | None:
    """Context rows further back than the window are not seen; the block itself is."""
    if window is None or start + size - first <= window:
        return None
    keys = torch.cat((torch.arange(first, start), torch.arange(start, start + size)))
    queries = torch.arange(start, start + size)[:, None]
    return (queries - keys < window) | (keys >= start)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, H, D]: pair (i, i + D/2) turned by cos, sin [n, D/2]."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def _load_layer(loader: Loader, prefix: str) -> DFlashLayer:
    def one(name: str) -> Tensor:
        return loader.tensor(f"{prefix}{name}.weight")

    def stack(*names: str) -> Tensor:
        return loader.stacked([f"{prefix}{name}.weight" for name in names])

    return DFlashLayer(
        attention_norm=one("input_layernorm"),
        q=one("self_attn.q_proj"),
        kv=stack("self_attn.k_proj", "self_attn.v_proj"),
        o=one("self_attn.o_proj"),
        q_norm=one("self_attn.q_norm"),
        k_norm=one("self_attn.k_norm"),
        mlp_norm=one("post_attention_layernorm"),
        gate_up=stack("mlp.gate_proj", "mlp.up_proj"),
        down=one("mlp.down_proj"),
    )


def _read_map(checkpoint: Checkpoint, config: DFlashConfig) -> Tensor:
    """[V'] target ids of the head's rows; stored as what to add to the row's number."""
    offsets = checkpoint.read(ID_MAP).long()
    ids = torch.arange(len(offsets)) + offsets
    if len(ids) != checkpoint.shapes()[HEAD][0] or ids.min() < 0 or ids.max() >= config.vocab_size:
        raise CheckpointError(f"{checkpoint.path}: {ID_MAP} does not map the head's rows into the vocabulary")
    return ids
