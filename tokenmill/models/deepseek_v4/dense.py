"""V4 on whole rows of equal length, without caches and with gradients: what training runs.

Projections, experts, hyper-connections, norms and MTP are the engine's own layers; only what reads caches there is
written for whole rows here: window attention in chunks, compression of complete windows, the indexer's choice.
The choice has no gradient, so the indexer learns from its own loss: its scores are to rank entries as attention does.
Under torch.autocast what V4 computes in float32 stays float32.
Not responsible for: optimisers, data, the loss on tokens (training/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels.mhc import batched
from tokenmill.kernels.moe.api import Routing
from tokenmill.kernels.moe.reference import hash_router, router
from tokenmill.kernels.select import select_kernels
from tokenmill.models.deepseek_v4.attention import Attention, Queries, turn
from tokenmill.models.deepseek_v4.block import Block, BlockOps, Collapse
from tokenmill.models.deepseek_v4.config import CSA_RATIO, AttentionKind, DeepseekV4Config, kind_of_ratio
from tokenmill.models.deepseek_v4.groups import cache_formats
from tokenmill.models.deepseek_v4.mtp import Mtp
from tokenmill.models.deepseek_v4.step import Rotaries, Rotation
from tokenmill.models.deepseek_v4.weights import AttentionWeights, CompressorWeights, Weights

_Op = TypeVar("_Op", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rows:
    """Shape of a batch of B rows of T tokens, and what all layers share.

    window  [chunks, W, 2 W] which of its own and of the previous chunk's rows a query sees
    """

    num_rows: int
    length: int
    chunk: int
    sliding: Rotation
    compress: Rotation
    window: Tensor


@dataclass(frozen=True, slots=True)
class Entries:
    """Compressed rows kv [B, M, D] of a layer and which of them each query sees [B or 1, T, M]; index scores of
    CSA layers [B, T, M], -inf where not visible."""

    kv: Tensor
    is_seen: Tensor
    scores: Tensor | None = None


class DenseV4:
    """`weights` in float32; tensors among them that require gradients get them."""

    def __init__(self, config: DeepseekV4Config, weights: Weights) -> None:
        kernels = select_kernels(deterministic=True, dtype=torch.float32)
        formats, dtype = cache_formats(config, "float32"), torch.float32
        self.config = config
        self.is_sparse = True  # False: attend to all entries, which the indexer learns most from
        self.index_losses: list[Tensor] = []  # of the last forward pass with gradients, one per CSA layer
        self.expert_counts: dict[int, Tensor] = {}  # tokens per expert of the last pass, by id of the bias tensor
        self._weights = weights
        ops = BlockOps(
            mhc_pre=_wide(batched.mhc_pre),
            mhc_post=_wide(batched.mhc_post),
            mhc_head=_wide(batched.mhc_head),
            router=_wide(self._route),
            hash_router=_wide(hash_router),
        )
        self._rms_norm = kernels.rms_norm
        self._rotaries = Rotaries(config)
        self._blocks = [Block(config, block, kernels, formats, dtype, ops) for block in weights.blocks]
        self._collapse = Collapse(config, weights.collapse, kernels, ops)
        self._mtp = [Mtp(config, mtp, kernels, formats, dtype, ops) for mtp in weights.mtp]

    # -- forward --

    def streams(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> streams of the trunk [B T, N, C]. T is a multiple of the sliding window."""
        rows = self._rows(ids)
        self.index_losses = []
        flat = ids.flatten()
        embedded = F.embedding(flat, self._weights.embed)
        streams = embedded.unsqueeze(1).expand(-1, self.config.hc_mult, -1).contiguous()
        for layer, block in enumerate(self._blocks):

            def attend(x: Tensor, layer: int = layer) -> Tensor:
                return self._attend(layer, x, rows)

            streams = block(streams, flat, attend)
        return streams

    def mtp_streams(self, streams: Tensor, next_ids: Tensor, block: int = 0) -> Tensor:
        """streams [B T, N, C] and the tokens that follow [B, T] -> streams of the MTP block."""
        rows, mtp = self._rows(next_ids), self._mtp[block]
        flat = next_ids.flatten()

        def attend(x: Tensor) -> Tensor:
            return self._attention(mtp.block.attention, x, rows, rows.sliding, None)[0]

        return mtp.block(mtp.combine(streams, F.embedding(flat, self._weights.embed)), flat, attend)

    def logits(self, streams: Tensor) -> Tensor:
        """[R, N, C] of the trunk -> [R, V]: the next token."""
        return F.linear(self._collapse(streams), self._weights.head).float()

    def mtp_logits(self, streams: Tensor, block: int = 0) -> Tensor:
        """[R, N, C] of an MTP block -> [R, V]: the token after the next."""
        return F.linear(self._mtp[block].collapse(streams), self._weights.head).float()

    def _route(self, x: Tensor, gate: Tensor, bias: Tensor, top_k: int, scaling: float) -> Routing:
        routing = router(x, gate, bias, top_k, scaling)
        self.expert_counts[id(bias)] = torch.bincount(routing.expert_ids.flatten(), minlength=len(bias))
        return routing

    # -- what rows share --

    def _rows(self, ids: Tensor) -> Rows:
        num_rows, length = ids.shape
        chunk = self.config.sliding_window
        assert length % chunk == 0, f"rows of {length} tokens are no multiple of the window, {chunk}"
        positions = torch.arange(length).repeat(num_rows)
        return Rows(
            num_rows,
            length,
            chunk,
            self._rotaries.sliding(positions),
            self._rotaries.compress(positions),
            _window_mask(length // chunk, chunk),
        )

    # -- attention --

    def _attend(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        attention, weights = self._blocks[layer].attention, self._weights.blocks[layer].attention
        kind = kind_of_ratio(self.config.compress_ratios[layer])
        if kind is AttentionKind.SLIDING:
            return self._attention(attention, x, rows, rows.sliding, None)[0]
        queries = attention.project(x, rows.compress)
        entries = self._csa(weights, queries, rows) if kind is AttentionKind.CSA else self._hca(layer, queries, rows)
        out, seen = self._attention(attention, x, rows, rows.compress, entries, queries)
        if entries.scores is not None and torch.is_grad_enabled():
            self.index_losses.append(_index_loss(entries.scores, seen))
        return out

    def _attention(
        self,
        attention: Attention,
        x: Tensor,
        rows: Rows,
        rotation: Rotation,
        entries: Entries | None,
        queries: Queries | None = None,
    ) -> tuple[Tensor, Tensor]:
        """-> output [B T, C] and the attention that entries got, summed over heads, without gradient [B, T, M]."""
        queries = attention.project(x, rotation) if queries is None else queries
        b, n, w, d = rows.num_rows, rows.length // rows.chunk, rows.chunk, self.config.head_dim
        own = queries.kv.view(b, n, w, d)
        keys = torch.cat((F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own), dim=2)  # [B, n, 2 W, D]
        mask = rows.window.expand(b, -1, -1, -1)
        if entries is not None:
            keys = torch.cat((keys, entries.kv.unsqueeze(1).expand(-1, n, -1, -1)), dim=2)
            seen = entries.is_seen.unflatten(1, (n, w)).expand(b, -1, -1, -1)
            mask = torch.cat((mask, seen), dim=-1)
        heads = self.config.num_attention_heads
        q = (queries.q * d**-0.5).view(b * n, w * heads, d)
        keys = keys.flatten(0, 1)
        scores = torch.bmm(q, keys.transpose(1, 2)).view(b * n, w, heads, -1)
        scores = scores + _additive(mask).flatten(0, 1).unsqueeze(2)
        sink = attention.sink.view(1, 1, heads, 1).expand(b * n, w, heads, 1)
        probs = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
        out = torch.bmm(probs.reshape(b * n, w * heads, -1), keys).view(-1, heads, d)
        on_entries = probs.detach()[..., 2 * w :].sum(2).view(b, rows.length, -1)
        return attention.project_out(turn(out, rotation.inverse())), on_entries

    # -- compressed rows --

    def _hca(self, layer: int, queries: Queries, rows: Rows) -> Entries:
        ratio, weights = self.config.compress_ratios[layer], self._weights.blocks[layer].attention
        assert weights.compress is not None and weights.compressor is not None
        kv, gate = F.linear(queries.x, weights.compress).float().view(rows.num_rows, rows.length, -1).chunk(2, dim=-1)
        kv, gate = kv.unflatten(1, (-1, ratio)), gate.unflatten(1, (-1, ratio)) + weights.compressor.ape
        pooled = (gate.softmax(2) * kv).sum(2)
        return Entries(self._finish(pooled, weights.compressor, ratio), _visible(rows.length, ratio))

    def _csa(self, weights: AttentionWeights, queries: Queries, rows: Rows) -> Entries:
        config, d, i = self.config, self.config.head_dim, self.config.index_head_dim
        assert weights.compress is not None and weights.compressor is not None
        assert weights.index_compressor is not None
        main, index = weights.compress.split([4 * d, 4 * i])
        kv = self._finish(_pool_overlap(F.linear(queries.x, main), weights.compressor, rows), weights.compressor, 4)
        # The indexer learns from its own loss alone and does not pull at the rest of the model.
        pooled = _pool_overlap(F.linear(queries.x.detach(), index), weights.index_compressor, rows)
        keys = self._finish(pooled, weights.index_compressor, CSA_RATIO)
        visible = _visible(rows.length, CSA_RATIO)
        scores = self._index_scores(weights, queries, rows, keys).masked_fill(~visible, -torch.inf)
        if keys.shape[1] <= config.index_topk or not self.is_sparse:
            return Entries(kv, visible, scores)
        chosen = scores.detach().topk(config.index_topk, dim=-1).indices
        is_seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True) & visible
        return Entries(kv, is_seen, scores)

    def _index_scores(self, weights: AttentionWeights, queries: Queries, rows: Rows, keys: Tensor) -> Tensor:
        """[B, T, M]."""
        assert weights.index_wq_b is not None and weights.index_weights is not None
        heads, dim = self.config.index_n_heads, self.config.index_head_dim
        q = F.linear(queries.latent.detach(), weights.index_wq_b).unflatten(-1, (heads, dim))
        q = turn(q, rows.compress).view(rows.num_rows, rows.length * heads, dim)
        products = torch.bmm(q, keys.transpose(1, 2)).relu().unflatten(1, (-1, heads))  # [B, T, H, M]
        weight = F.linear(queries.x.detach(), weights.index_weights) * (dim**-0.5 * heads**-0.5)
        return (products * weight.view(rows.num_rows, rows.length, heads, 1)).sum(2)

    def _finish(self, pooled: Tensor, compressor: CompressorWeights, ratio: int) -> Tensor:
        """Norm and rotation of entries [B, M, D], each at the position of its first token."""
        b, m, _ = pooled.shape
        rotation = self._rotaries.compress(torch.arange(m).repeat(b) * ratio)
        normed = self._rms_norm(pooled.flatten(0, 1), compressor.norm, self.config.rms_norm_eps)
        return turn(normed, rotation).view(b, m, -1)


def _wide(op: _Op) -> _Op:
    """`op` in float32 even where products are computed in bfloat16."""

    def run(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return op(*args)

    return cast(_Op, run)


def _pool_overlap(projected: Tensor, compressor: CompressorWeights, rows: Rows) -> Tensor:
    """[B T, 4 D] kv and gate, parts A and B -> entries [B, M, D]; part A belongs to the NEXT entry."""
    kv, gate = projected.float().view(rows.num_rows, -1, CSA_RATIO, projected.shape[-1]).chunk(2, dim=-1)
    gate = gate + compressor.ape
    (kv_a, kv_b), (gate_a, gate_b) = kv.chunk(2, dim=-1), gate.chunk(2, dim=-1)
    kv_a = F.pad(kv_a, (0, 0, 0, 0, 1, 0))[:, :-1]
    gate_a = F.pad(gate_a, (0, 0, 0, 0, 1, 0), value=-torch.inf)[:, :-1]
    gate = torch.cat((gate_a, gate_b), dim=2)
    return (gate.softmax(2) * torch.cat((kv_a, kv_b), dim=2)).sum(2)


def _index_loss(scores: Tensor, attention: Tensor) -> Tensor:
    """Cross-entropy of the index scores with the attention that the chosen entries got, over queries that chose."""
    total = attention.sum(-1, keepdim=True)
    target = attention / (total + 1e-9)
    chosen = scores.masked_fill(attention == 0, -torch.inf)
    has_any = (attention > 0).any(-1)
    log_probs = torch.log_softmax(chosen[has_any], dim=-1)
    wanted = target[has_any]
    return -(wanted * log_probs.masked_fill(wanted == 0, 0.0)).sum(-1).mean()


def _window_mask(num_chunks: int, chunk: int) -> Tensor:
    """[chunks, W, 2 W]: rows of the previous and the own chunk within the last W positions."""
    query, key = torch.arange(chunk)[:, None], torch.arange(2 * chunk) - chunk
    inside = (key <= query) & (key > query - chunk)
    mask = inside.expand(num_chunks, -1, -1).clone()
    mask[0] &= key >= 0
    return mask


def _visible(length: int, ratio: int) -> Tensor:
    """[1, T, M]: entries that are complete at a position."""
    complete = torch.div(torch.arange(length) + 1, ratio, rounding_mode="floor")
    return (torch.arange(length // ratio) < complete[:, None]).unsqueeze(0)


def _additive(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
