"""What all layers of one forward pass share: row arithmetic per cache group, and rotation tables.

Built once per step; read-only afterwards. Not responsible for: activations, weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.rope.api import RotaryTable
from tokenmill.kernels.rope.frequencies import Rotary, plain, yarn
from tokenmill.models.batch import ForwardBatch, GroupTable
from tokenmill.models.deepseek_v4.config import CSA_RATIO, AttentionKind, DeepseekV4Config, kind_of_ratio
from tokenmill.models.deepseek_v4.csa_state import CsaWindows, StateRows
from tokenmill.models.deepseek_v4.hca_state import Lanes
from tokenmill.models.deepseek_v4.step_index import (
    KEY_MULTIPLE,
    Checkpoints,
    Closing,
    Sequences,
    WindowIndex,
    ragged,
    slots_of,
)

#: Compressed rows of a query are padded to a multiple of this many: a function of the query's position alone, so
#: that its bits do not depend on the step it is computed in.
_ENTRY_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin [n, R/2] float32 of some positions."""

    cos: Tensor
    sin: Tensor

    def inverse(self) -> Rotation:
        return Rotation(self.cos, -self.sin)


def sliding_rotary(config: DeepseekV4Config) -> Rotary:
    """Of layers without compression and of the MTP block: rope_theta, plain."""
    return plain(config.qk_rope_head_dim, config.rope_theta)


def compress_rotary(config: DeepseekV4Config) -> Rotary:
    """Of everything in CSA and HCA layers: compress_rope_theta under YaRN, on short contexts too."""
    dim, theta = config.qk_rope_head_dim, config.compress_rope_theta
    if config.yarn is None:
        return plain(dim, theta)
    return yarn(
        dim,
        theta,
        factor=config.yarn.factor,
        original_max_len=config.yarn.original_max_len,
        beta_fast=config.yarn.beta_fast,
        beta_slow=config.yarn.beta_slow,
        magnitude=1.0,  # V4 multiplies neither cos and sin nor the scores
    )


class Rotaries:
    """Rotation tables of both kinds of layers."""

    def __init__(self, config: DeepseekV4Config) -> None:
        self._sliding = RotaryTable(sliding_rotary(config))
        self._compress = RotaryTable(compress_rotary(config))

    def sliding(self, positions: Tensor) -> Rotation:
        return Rotation(*self._sliding.rows(positions))

    def compress(self, positions: Tensor) -> Rotation:
        return Rotation(*self._compress.rows(positions))


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows of the step by how many compressed rows they attend to (padded): (width, row numbers [n])."""

    groups: tuple[tuple[int, Tensor], ...]

    @classmethod
    def by_width(cls, widths: Tensor) -> RowGroups:
        return cls(tuple((int(w), (widths == w).nonzero().squeeze(1)) for w in widths.unique()))


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Where the compressor state is read before the step and written after the rows that are certain to stay.

    read_blocks [B]: physical block of the state of the last computed token; any block where there is none (a new
    sequence, or a window being rebuilt), whose content is then not used or not kept
    """

    read_blocks: Tensor
    checkpoints: Checkpoints

    @classmethod
    def of(cls, batch: ForwardBatch, seqs: Sequences, group: str) -> StatePlan:
        return cls(state_blocks(batch, group, seqs.context), Checkpoints.of(batch, group, seqs.context, seqs.certain))


def state_blocks(batch: ForwardBatch, group: str, num_tokens: Tensor) -> Tensor:
    """[B] physical block that holds each sequence's state after so many tokens; any block where none does."""
    table = batch.tables[group]
    last = _floor(num_tokens - 1, batch.block_size) - table.first_block
    return table.block_ids.gather(1, last.clamp(min=0)[:, None]).squeeze(1)


@dataclass(frozen=True, slots=True)
class CsaStep:
    """visible [T] entries per row, num_entries [B] per sequence; see kernels/indexer for the choice among them."""

    visible: Tensor
    num_entries: Tensor
    closing: Closing
    key_slots: Tensor  # where the indexer keys of the closing entries go: a group of its own
    rotation: Rotation  # of the closing entries
    windows: CsaWindows
    state: StatePlan
    state_rows: StateRows
    rows: RowGroups


@dataclass(frozen=True, slots=True)
class HcaPass:
    """One run of the online compressor over part of the step's rows: the certain ones, then the drafts."""

    lanes: Lanes
    closing: Closing
    rotation: Rotation


@dataclass(frozen=True, slots=True)
class HcaStep:
    """read_slots [R]: all visible entries of all sequences; first_entry [T]: row's sequence begins there in them."""

    ratio: int
    visible: Tensor
    read_slots: Tensor
    first_entry: Tensor
    certain: HcaPass
    drafts: HcaPass | None
    state: StatePlan
    rows: RowGroups


class Step:
    """Index arithmetic of one forward pass over the trunk."""

    def __init__(self, batch: ForwardBatch, config: DeepseekV4Config, rotaries: Rotaries) -> None:
        self.batch = batch
        self.seqs = Sequences.of(batch)
        self.seq_ids = batch.sequence_ids()
        self.has_drafts = any(batch.draft_lens)
        self.window = WindowIndex.of(batch, self.seqs, self.seq_ids, "window", config.sliding_window)
        self.sliding_rotation = rotaries.sliding(batch.positions)
        self.compress_rotation = rotaries.compress(batch.positions)
        self._rotaries = rotaries
        ratios = sorted({r for r in config.compress_ratios if kind_of_ratio(r) is AttentionKind.HCA})
        self.csa = self._csa_step(config) if CSA_RATIO in config.compress_ratios else None
        self.hca = {ratio: self._hca_step(ratio) for ratio in ratios}

    def table(self, group: str) -> GroupTable:
        return self.batch.tables[group]

    def _csa_step(self, config: DeepseekV4Config) -> CsaStep:
        batch, seqs = self.batch, self.seqs
        closing = Closing.of(batch, seqs, "csa", CSA_RATIO, seqs.context, seqs.total)
        windows = CsaWindows(seqs, closing)
        state = StatePlan.of(batch, seqs, "csa_state")
        visible = _floor(batch.positions + 1, CSA_RATIO)
        most = config.index_topk + -config.index_topk % KEY_MULTIPLE
        return CsaStep(
            visible=visible,
            num_entries=_floor(seqs.total, CSA_RATIO),
            closing=closing,
            key_slots=slots_of(batch.tables["indexer"], closing.owner, closing.entry, batch.block_size // CSA_RATIO),
            rotation=self._rotaries.compress(closing.positions),
            windows=windows,
            state=state,
            state_rows=windows.state_rows(state.checkpoints),
            rows=RowGroups.by_width(_padded(visible).clamp(max=most)),
        )

    def _hca_step(self, ratio: int) -> HcaStep:
        batch, seqs = self.batch, self.seqs
        num_entries = _floor(seqs.total, ratio)
        owner, entry = ragged(torch.zeros_like(num_entries), num_entries)
        visible = _floor(batch.positions + 1, ratio)
        return HcaStep(
            ratio=ratio,
            visible=visible,
            read_slots=slots_of(self.table("hca"), owner, entry, batch.block_size // ratio),
            first_entry=(num_entries.cumsum(0) - num_entries)[self.seq_ids],
            certain=self._hca_pass(ratio, seqs.context, seqs.certain),
            drafts=self._hca_pass(ratio, seqs.certain, seqs.total) if self.has_drafts else None,
            state=StatePlan.of(batch, seqs, "hca_state"),
            rows=RowGroups.by_width(_padded(visible)),
        )

    def _hca_pass(self, ratio: int, before: Tensor, after: Tensor) -> HcaPass:
        closing = Closing.of(self.batch, self.seqs, "hca", ratio, before, after)
        lanes = Lanes.of(self.seqs, ratio, before, after)
        return HcaPass(lanes, closing, self._rotaries.compress(closing.positions))


def _padded(visible: Tensor) -> Tensor:
    return _floor(visible + _ENTRY_MULTIPLE - 1, _ENTRY_MULTIPLE) * _ENTRY_MULTIPLE


def _floor(x: Tensor, divisor: int) -> Tensor:
    return torch.div(x, divisor, rounding_mode="floor")
