"""The compressed side of CSA and HCA layers: project, pool, store entries, keep state, offer rows to attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.compressor.api import OnlineState
from tokenmill.kernels.hadamard.reference import hadamard
from tokenmill.kernels.indexer.reference import indexer_topk
from tokenmill.kernels.kv_quant.layout import RowLayout
from tokenmill.kernels.kv_quant.reference import fake_quantise
from tokenmill.kernels.select import Kernels
from tokenmill.models.deepseek_v4 import csa_state, hca_state
from tokenmill.models.deepseek_v4.attention import Queries, pad_entries, turn
from tokenmill.models.deepseek_v4.caches import read_rows, write_rows
from tokenmill.models.deepseek_v4.config import CSA_RATIO, DeepseekV4Config
from tokenmill.models.deepseek_v4.csa_state import CsaPools
from tokenmill.models.deepseek_v4.groups import CacheFormats
from tokenmill.models.deepseek_v4.hca_state import Lanes
from tokenmill.models.deepseek_v4.step import CsaStep, HcaPass, HcaStep, Rotation, RowGroups, Step
from tokenmill.models.deepseek_v4.step_index import Checkpoints, slots_of
from tokenmill.models.deepseek_v4.weights import AttentionWeights, CompressorWeights


@dataclass(frozen=True, slots=True)
class CsaCaches:
    """Of one layer: entries, indexer keys, state of the main and of the indexer's compressor."""

    entries: Tensor
    keys: Tensor
    state: Tensor
    index_state: Tensor


@dataclass(frozen=True, slots=True)
class HcaCaches:
    entries: Tensor
    state: Tensor


@dataclass(frozen=True, slots=True)
class CsaDrafts:
    """Raw compressor rows of a step with drafts, from which `commit` writes the state it settles on."""

    main: CsaPools
    index: CsaPools


@dataclass(frozen=True, slots=True)
class HcaDrafts:
    kv: Tensor
    gate: Tensor


class CsaRows:
    """Entries chosen by the indexer, as attention asks for them. chosen [T, k], -1 where none."""

    def __init__(self, chosen: Tensor, entries: Tensor, step: Step, groups: RowGroups, layout: RowLayout) -> None:
        self.groups = groups
        self.chosen = chosen
        self._entries, self._step, self._layout = entries, step, layout

    def fetch(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        entry = pad_entries(self.chosen[rows], width)
        owner = self._step.seq_ids[rows, None].expand(-1, width)
        rows_per_block = self._step.batch.block_size // CSA_RATIO
        slots = slots_of(self._step.table("csa"), owner, entry.clamp(min=0), rows_per_block)
        return read_rows(self._entries, slots, self._layout), entry >= 0


class CsaCompressor:
    def __init__(
        self, config: DeepseekV4Config, weights: AttentionWeights, kernels: Kernels, formats: CacheFormats
    ) -> None:
        assert weights.compress is not None and weights.compressor is not None
        assert weights.index_compressor is not None and weights.index_wq_b is not None
        assert weights.index_weights is not None
        self._config, self._kernels, self._formats = config, kernels, formats
        self._compress = weights.compress
        self._main, self._index = weights.compressor, weights.index_compressor
        self._dtype = weights.index_wq_b.dtype
        self._wq_b = kernels.linear(weights.index_wq_b)
        self._head_weights = weights.index_weights

    def run(self, queries: Queries, step: Step, csa: CsaStep, caches: CsaCaches) -> tuple[CsaRows, CsaDrafts]:
        """Close entries and keys, write the state of the rows that stay, choose entries for every row."""
        main, index = self._pools(queries.x, step, csa, caches)
        if len(csa.closing.entry):
            entries, keys = self._pool(csa, main, self._main), self._pool(csa, index, self._index)
            write_rows(caches.entries, csa.closing.slots, entries, self._formats.kv)
            write_rows(caches.keys, csa.key_slots, self._rotate(keys), self._formats.index)
        csa_state.write_state(caches.state, main, csa.state_rows, csa.state.checkpoints.block)
        csa_state.write_state(caches.index_state, index, csa.state_rows, csa.state.checkpoints.block)
        chosen = self._choose(queries, step, csa, caches.keys)
        return CsaRows(chosen, caches.entries, step, csa.rows, self._formats.kv), CsaDrafts(main, index)

    def _pools(self, x: Tensor, step: Step, csa: CsaStep, caches: CsaCaches) -> tuple[CsaPools, CsaPools]:
        d, i = self._config.head_dim, self._config.index_head_dim
        kv, gate, index_kv, index_gate = invariant.matmul(x, self._compress).split([2 * d, 2 * d, 2 * i, 2 * i], -1)
        place = step.batch.positions % CSA_RATIO
        blocks = csa.state.read_blocks
        main = _parts(kv, gate + self._main.ape[place])
        index = _parts(index_kv, index_gate + self._index.ape[place])
        return csa.windows.pools(caches.state, blocks, main), csa.windows.pools(caches.index_state, blocks, index)

    def _pool(self, csa: CsaStep, pools: CsaPools, weights: CompressorWeights) -> Tensor:
        """Entries that close [n, D], normalised and turned."""
        rows = self._kernels.rms_norm(csa.windows.close(pools), weights.norm, self._config.rms_norm_eps)
        return turn(rows, csa.rotation)

    def _rotate(self, x: Tensor) -> Tensor:
        """Hadamard on queries and on keys, or on neither: only rounding to few bits gains from it."""
        return hadamard(x) if self._formats.index.is_packed else x

    # -- indexer --

    def _choose(self, queries: Queries, step: Step, csa: CsaStep, keys: Tensor) -> Tensor:
        """Entries that each row attends to [T, k]."""
        topk = self._config.index_topk
        most = int(csa.num_entries.max())
        chosen = torch.full((len(csa.visible), min(topk, most)), -1)
        for b, num_entries in enumerate(csa.num_entries.tolist()):
            rows = slice(step.batch.cu_seqlens[b], step.batch.cu_seqlens[b + 1])
            if num_entries <= topk:
                best = torch.arange(num_entries).expand(step.batch.query_len(b), -1)
                best = best.masked_fill(best >= csa.visible[rows, None], -1)
            else:
                q, head_weights = self._index_queries(queries, step.compress_rotation, rows)
                owner = torch.full((num_entries,), b)
                slots = slots_of(
                    step.table("indexer"), owner, torch.arange(num_entries), step.batch.block_size // CSA_RATIO
                )
                stored = read_rows(keys, slots, self._formats.index)
                best = indexer_topk(q, head_weights, stored, csa.visible[rows], topk)
            chosen[rows, : best.shape[1]] = best
        return chosen

    def _index_queries(self, queries: Queries, rotation: Rotation, rows: slice) -> tuple[Tensor, Tensor]:
        """q [n, H, D] as the stored keys want it, head weights [n, H] with both scales."""
        heads, dim = self._config.index_n_heads, self._config.index_head_dim
        q = self._wq_b(queries.latent[rows].to(self._dtype)).float().unflatten(-1, (heads, dim))
        q = turn(q, Rotation(rotation.cos[rows], rotation.sin[rows]))
        if self._formats.index.is_packed:
            q = fake_quantise(self._rotate(q).flatten(0, 1), self._formats.index).view_as(q)
        return q, invariant.matmul(queries.x[rows], self._head_weights) * (dim**-0.5 * heads**-0.5)

    # -- drafts --

    def commit(self, drafts: CsaDrafts, csa: CsaStep, checkpoints: Checkpoints, caches: CsaCaches) -> None:
        rows = csa.windows.state_rows(checkpoints)
        csa_state.write_state(caches.state, drafts.main, rows, checkpoints.block)
        csa_state.write_state(caches.index_state, drafts.index, rows, checkpoints.block)


class HcaRows:
    """All entries of each row's sequence; entries [R, D] of all sequences one behind the other."""

    def __init__(self, entries: Tensor, hca: HcaStep) -> None:
        self.groups = hca.rows
        self._entries, self._hca = entries, hca

    def fetch(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        entry = torch.arange(width)
        is_valid = entry < self._hca.visible[rows, None]
        index = torch.where(is_valid, self._hca.first_entry[rows, None] + entry, 0)
        return self._entries[index], is_valid


class HcaCompressor:
    def __init__(
        self, config: DeepseekV4Config, weights: AttentionWeights, kernels: Kernels, formats: CacheFormats
    ) -> None:
        assert weights.compress is not None and weights.compressor is not None
        self._config, self._kernels, self._formats = config, kernels, formats
        self._compress, self._weights = weights.compress, weights.compressor

    def run(self, queries: Queries, step: Step, hca: HcaStep, caches: HcaCaches) -> tuple[HcaRows, HcaDrafts]:
        kv, gate = invariant.matmul(queries.x, self._compress).chunk(2, dim=-1)
        gate = gate + self._weights.ape[step.batch.positions % hca.ratio]
        state = self._advance(hca.certain, kv, gate, hca_state.read_state(caches.state, hca.state.read_blocks), caches)
        if hca.drafts is not None:
            self._advance(hca.drafts, kv, gate, state, caches)
        hca_state.write_state(caches.state, state, hca.ratio, hca.state.checkpoints)
        entries = read_rows(caches.entries, hca.read_slots, self._formats.kv)
        return HcaRows(entries, hca), HcaDrafts(kv, gate)

    def _advance(self, run: HcaPass, kv: Tensor, gate: Tensor, state: OnlineState, caches: HcaCaches) -> OnlineState:
        """Pool the rows of `run`, store the entries that close; the state of every sequence afterwards."""
        pooled, lanes = run.lanes.run(kv, gate, state)
        if len(run.closing.entry):
            rows = self._kernels.rms_norm(pooled, self._weights.norm, self._config.rms_norm_eps)
            write_rows(caches.entries, run.closing.slots, turn(rows, run.rotation), self._formats.kv)
        return run.lanes.last_states(lanes, state)

    def commit(
        self, drafts: HcaDrafts, lanes: Lanes, read_blocks: Tensor, checkpoints: Checkpoints, caches: HcaCaches
    ) -> None:
        """`lanes` cover the accepted drafts; the entries that they close were stored in the forward pass."""
        before = hca_state.read_state(caches.state, read_blocks)
        after = lanes.last_states(lanes.run(drafts.kv, drafts.gate, before)[1], before)
        hca_state.write_state(caches.state, after, lanes.ratio, checkpoints)


def _parts(kv: Tensor, gate: Tensor) -> Tensor:
    """kv, gate [T, 2D] -> [2 (kv, gate), 2 (A, B), T, D]."""
    return torch.stack((kv, gate)).unflatten(-1, (2, -1)).transpose(1, 2)
