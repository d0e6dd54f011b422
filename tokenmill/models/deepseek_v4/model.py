"""DeepSeek V4: embedding, blocks over four residual streams, collapse, output head; optional MTP blocks.

Per-sequence state lives in the caches alone. Between `forward` and `commit` of one step with drafts the model holds
the raw compressor rows of that step, from which the state for any accepted length is made.
Not responsible for: reading files (builder.py), index arithmetic (step.py), arithmetic of an op (kernels/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.errors import ConfigError
from tokenmill.core.work import Work
from tokenmill.kernels.select import Kernels
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.deepseek_v4 import caches as cache_tensors
from tokenmill.models.deepseek_v4 import groups, work
from tokenmill.models.deepseek_v4.attention import CompressedRows, Queries
from tokenmill.models.deepseek_v4.block import Block, Collapse
from tokenmill.models.deepseek_v4.compressed import (
    CsaCaches,
    CsaCompressor,
    CsaDrafts,
    CsaRows,
    HcaCaches,
    HcaCompressor,
    HcaDrafts,
)
from tokenmill.models.deepseek_v4.config import AttentionKind, DeepseekV4Config, kind_of_ratio
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.hca_state import Lanes
from tokenmill.models.deepseek_v4.mtp import Mtp
from tokenmill.models.deepseek_v4.step import Rotaries, Step, state_blocks
from tokenmill.models.deepseek_v4.step_index import Checkpoints, Sequences, WindowIndex
from tokenmill.models.deepseek_v4.weights import Weights, count_parameters
from tokenmill.models.features import Features


@dataclass(slots=True)
class Trace:
    """What a forward pass can record for tests and proposers: per trunk layer streams [T, N, C] after it, and for
    CSA layers the chosen entries [T, k]."""

    streams: dict[int, Tensor] = field(default_factory=dict)
    chosen: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step whose drafts are not decided yet: raw rows per layer."""

    step: Step
    csa: dict[int, CsaDrafts]
    hca: dict[int, HcaDrafts]


class V4Base:
    """What every implementation of the model shares: sizes, caches, work. Not usable by itself."""

    def __init__(self, config: DeepseekV4Config, weights: Weights, formats: CacheFormats, dtype: torch.dtype) -> None:
        self.config = config
        self.formats = formats
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_position_embeddings
        self.num_layers, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.num_parameters = count_parameters(weights)
        self.num_mtp = len(weights.mtp)
        self._dtype = dtype

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return groups.cache_groups(self.config, self.formats, block_size, self.num_mtp)

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        return cache_tensors.allocate_caches(self.config, self.formats, num_blocks, block_size, self.num_mtp)

    def step_work(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> Work:
        size = float(self._dtype.itemsize)
        stored = work.WeightBytes(experts=size, linears=size, other=size)
        return work.step_work(self.config, self.formats, query_lens, context_lens, stored)

    def forward_with_features(self, batch: ForwardBatch, caches: Caches, features: Features) -> tuple[Tensor, Tensor]:
        """See base.ShowingModel. The output of a layer is the mean of its streams [T, C]."""
        trace = None if features.are_streams else Trace()
        streams = self.forward_streams(batch, caches, trace)
        if trace is None:
            return self.collapse(streams), streams
        return self.collapse(streams), torch.cat([trace.streams[i].mean(1) for i in features.layers], dim=-1)

    def forward_streams(self, batch: ForwardBatch, caches: Caches, trace: Trace | None = None) -> Tensor:
        raise NotImplementedError

    def collapse(self, streams: Tensor) -> Tensor:
        raise NotImplementedError

    def embed(self, token_ids: Tensor) -> Tensor:
        """[n] -> [n, C]"""
        raise NotImplementedError

    def _check_mtp(self) -> None:
        if not self.num_mtp:
            raise ConfigError("this model was loaded without MTP blocks: load a checkpoint that has them, with mtp=on")


class DeepseekV4(V4Base):
    """See models/base.Model. The torch implementation; with reference kernels it is the definition of the model."""

    def __init__(
        self,
        config: DeepseekV4Config,
        weights: Weights,
        kernels: Kernels,
        formats: CacheFormats,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(config, weights, formats, dtype)
        self._kernels = kernels
        self._embed = weights.embed
        self._head = kernels.linear(weights.head)
        self._rotaries = Rotaries(config)
        self._blocks = [Block(config, block, kernels, formats, dtype) for block in weights.blocks]
        self._collapse = Collapse(config, weights.collapse, kernels)
        self._csa = {
            i: CsaCompressor(config, weights.blocks[i].attention, kernels, formats)
            for i in config.layers_of(AttentionKind.CSA)
        }
        self._hca = {
            i: HcaCompressor(config, weights.blocks[i].attention, kernels, formats)
            for i in config.layers_of(AttentionKind.HCA)
        }
        self._mtp = [Mtp(config, mtp, kernels, formats, dtype) for mtp in weights.mtp]
        self._pending: _Pending | None = None

    def _csa_caches(self, layer: int, caches: Caches) -> CsaCaches:
        i = self.config.layers_of(AttentionKind.CSA).index(layer)
        state = caches["csa_state"]
        return CsaCaches(caches["csa"][i], caches["indexer"][i], state[2 * i], state[2 * i + 1])

    def _hca_caches(self, layer: int, caches: Caches) -> HcaCaches:
        i = self.config.layers_of(AttentionKind.HCA).index(layer)
        return HcaCaches(caches["hca"][i], caches["hca_state"][i])

    # -- forward --

    def forward(self, batch: ForwardBatch, caches: Caches) -> Tensor:
        """Final hidden states [T, C], normalised."""
        return self.collapse(self.forward_streams(batch, caches))

    def collapse(self, streams: Tensor) -> Tensor:
        """Trunk streams [T, N, C] -> hidden states [T, C] for compute_logits."""
        return self._collapse(streams)

    def forward_streams(self, batch: ForwardBatch, caches: Caches, trace: Trace | None = None) -> Tensor:
        """The trunk's streams before they are collapsed [T, N, C] float32, which the MTP block takes."""
        step = Step(batch, self.config, self._rotaries)
        pending = _Pending(step, {}, {})
        embedded = self._kernels.embedding(self._embed, batch.token_ids).float()
        streams = embedded.unsqueeze(1).repeat(1, self.config.hc_mult, 1)
        for layer, block in enumerate(self._blocks):

            def attend(x: Tensor, layer: int = layer) -> Tensor:
                return self._attend(layer, x, step, caches, pending, trace)

            streams = block(streams, batch.token_ids, attend)
            if trace is not None:
                trace.streams[layer] = streams
        self._pending = pending if step.has_drafts else None
        return streams

    def _attend(
        self, layer: int, x: Tensor, step: Step, caches: Caches, pending: _Pending, trace: Trace | None
    ) -> Tensor:
        attention, ratio = self._blocks[layer].attention, self.config.compress_ratios[layer]
        rotation = step.compress_rotation if ratio else step.sliding_rotation
        window_cache = caches["window"][layer]
        queries = attention.project(x, rotation)
        attention.write_window(queries, step.window, window_cache)
        compressed = self._compress(layer, queries, step, caches, pending)
        if trace is not None and isinstance(compressed, CsaRows):
            trace.chosen[layer] = compressed.chosen
        return attention.attend(queries, rotation, step.window, window_cache, compressed)

    def _compress(
        self, layer: int, queries: Queries, step: Step, caches: Caches, pending: _Pending
    ) -> CompressedRows | None:
        ratio = self.config.compress_ratios[layer]
        kind = kind_of_ratio(ratio)
        if kind is AttentionKind.CSA:
            assert step.csa is not None
            csa_rows, csa_drafts = self._csa[layer].run(queries, step, step.csa, self._csa_caches(layer, caches))
            pending.csa[layer] = csa_drafts
            return csa_rows
        if kind is AttentionKind.HCA:
            hca_rows, hca_drafts = self._hca[layer].run(queries, step, step.hca[ratio], self._hca_caches(layer, caches))
            pending.hca[layer] = hca_drafts
            return hca_rows
        return None

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._kernels.embedding(self._embed, token_ids)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, C] -> [R, V] float32."""
        return self._head(hidden.to(self._dtype)).float()

    # -- drafts --

    def commit(self, batch: ForwardBatch, caches: Caches, num_accepted: Sequence[int]) -> None:
        """Window rows and entries of rejected rows are overwritten before they are read; states are written here."""
        pending, self._pending = self._pending, None
        if not any(batch.draft_lens):
            return
        assert pending is not None and pending.step.batch is batch, "commit must follow the forward of the same batch"
        seqs = pending.step.seqs
        after = seqs.context + torch.tensor(num_accepted)
        assert bool((after >= seqs.certain).all() and (after <= seqs.total).all()), f"accepted {num_accepted}"
        self._commit_csa(pending, caches, after)
        self._commit_hca(pending, caches, after)

    def _commit_csa(self, pending: _Pending, caches: Caches, after: Tensor) -> None:
        csa, batch, seqs = pending.step.csa, pending.step.batch, pending.step.seqs
        if csa is None:
            return
        checkpoints = Checkpoints.of(batch, "csa_state", seqs.certain, after)
        for layer, drafts in pending.csa.items():
            self._csa[layer].commit(drafts, csa, checkpoints, self._csa_caches(layer, caches))

    def _commit_hca(self, pending: _Pending, caches: Caches, after: Tensor) -> None:
        batch, seqs = pending.step.batch, pending.step.seqs
        if not pending.hca:
            return
        checkpoints = Checkpoints.of(batch, "hca_state", seqs.certain, after)
        read_blocks = state_blocks(batch, "hca_state", seqs.certain)
        lanes = {ratio: Lanes.of(seqs, ratio, seqs.certain, after) for ratio in pending.step.hca}
        for layer, drafts in pending.hca.items():
            ratio = self.config.compress_ratios[layer]
            self._hca[layer].commit(drafts, lanes[ratio], read_blocks, checkpoints, self._hca_caches(layer, caches))

    # -- MTP --

    def mtp_forward(
        self, batch: ForwardBatch, caches: Caches, streams: Tensor, next_ids: Tensor, block: int = 0
    ) -> Tensor:
        """One drafting pass of MTP block `block` over the positions of `batch` (its token ids are not used).

        streams   [T, N, C] trunk streams at these positions, or this method's result for drafting further
        next_ids  [T] the token that follows each position
        Writes the `mtp_window` rows of the positions and returns streams; mtp_logits reads them.
        """
        self._check_mtp()
        seqs = Sequences.of(batch)
        window = WindowIndex.of(batch, seqs, batch.sequence_ids(), "mtp_window", self.config.sliding_window)
        embedded = self._kernels.embedding(self._embed, next_ids)
        rotation = self._rotaries.sliding(batch.positions)
        cache = caches["mtp_window"][block]
        return self._mtp[block].forward(streams, embedded, next_ids, rotation, window, cache)

    def mtp_logits(self, streams: Tensor, block: int = 0) -> Tensor:
        """MTP streams at t [R, N, C] -> logits [R, V] float32 of the token at t + 2."""
        return self.compute_logits(self._mtp[block].collapse(streams))
