"""Proposer of models with multi-token prediction: the model's own extra block guesses the token after the next.

Its row at position t takes the trunk's streams of t and the token at t + 1; the drafted token and the block's own
streams, fed back at t + 1, give the next guess. Rows are made as soon as the following token is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.errors import ConfigError
from tokenmill.engine.speculative.base import DraftWish, ObservedStep, Proposal
from tokenmill.engine.speculative.build import BuildContext
from tokenmill.engine.speculative.drawing import DraftPen, write_drafts
from tokenmill.engine.speculative.tracks import Tracks
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.features import Features
from tokenmill.models.ragged import ragged_batch

GROUP = "mtp_window"


@runtime_checkable
class MtpModel(Protocol):
    """What a model with MTP blocks offers beside models/base.Model; its cache groups include GROUP."""

    num_mtp: int

    def mtp_forward(
        self, batch: ForwardBatch, caches: Caches, streams: Tensor, next_ids: Tensor, block: int = 0
    ) -> Tensor: ...

    def mtp_logits(self, streams: Tensor, block: int = 0) -> Tensor: ...


def build(context: BuildContext) -> MtpProposer:
    context.refuse_model("mtp")
    model = context.target.model
    if not isinstance(model, MtpModel) or not model.num_mtp:
        raise ConfigError(
            f"speculative method mtp: {context.target.architecture} has no MTP blocks: use ngram, or draft_model or "
            "dflash with a checkpoint"
        )
    group = next(g for g in context.groups if g.name == GROUP)
    window = None if group.window_tokens is None else group.window_tokens + 1
    return MtpProposer(model, context.block_size, window, is_drawn=context.is_drawn)


class MtpProposer:
    """See base.Proposer. Blocks beyond the model's last are the last again (one block drafts any number)."""

    name = "mtp"
    features = Features()

    def __init__(self, model: MtpModel, block_size: int, window: int | None, *, is_drawn: bool = False) -> None:
        self._model, self._block_size, self._is_drawn = model, block_size, is_drawn
        self._tracks = Tracks(GROUP, block_size, window)
        self._streams: dict[str, Tensor] = {}  # [N, C] of the last row
        self._caches: Caches = {}

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        """The model declares the group, as it knows its rows."""
        return ()

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        return {}

    def bind(self, target: Caches, own: Caches) -> None:
        self._caches = target

    # -- after a step --

    def observe(self, step: ObservedStep) -> None:
        """One pass over all kept rows; the last row's streams wait for the next proposal."""
        rows: list[Tensor] = []
        next_ids: list[Sequence[int]] = []
        tables, starts, ids = [], [], []
        for seen in step.sequences:
            start, end = seen.num_computed_tokens, seen.num_computed_tokens + seen.num_kept
            table = seen.block_tables[GROUP]
            new = self._tracks.extend(seen.request_id, table, start, end, len(seen.token_ids))
            if not new:
                continue
            rows.append(torch.arange(new.start - start, new.stop - start) + seen.first_row)
            next_ids.append(seen.token_ids[new.start + 1 : new.stop + 1])
            starts.append(new.start)
            tables.append(self._tracks.clipped(seen.request_id, table))
            ids.append(seen.request_id)
        if not ids:
            return
        assert step.features is not None
        batch = ragged_batch(next_ids, starts, {GROUP: tables}, self._block_size)
        features = step.features
        if batch.num_tokens < len(features):
            features = features[torch.cat(rows)]
        streams = self._model.mtp_forward(batch, self._caches, features, batch.token_ids)
        for request_id, end in zip(ids, batch.cu_seqlens[1:], strict=True):
            self._streams[request_id] = streams[end - 1]

    # -- before a step --

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        pens = [DraftPen(wish, is_drawn=self._is_drawn) for wish in wishes]
        ready = [pen for pen in pens if self._is_ready(pen.wish)]
        if ready:
            streams = torch.stack([self._streams[pen.wish.request_id] for pen in ready])
            self._write(ready, streams)
        return [pen.proposal() for pen in pens]

    def _is_ready(self, wish: DraftWish) -> bool:
        track = self._tracks.get(wish.request_id)
        return track is not None and track.begin < track.end == wish.num_computed_tokens

    def _write(self, pens: list[DraftPen], streams: Tensor) -> None:
        """streams [R, N, C] of the last row of each pen's sequence."""
        depth = 0
        while True:
            write_drafts(pens, self._model.mtp_logits(streams))
            left = [i for i, pen in enumerate(pens) if not pen.is_done]
            if not left:
                return
            if len(left) < len(pens):
                pens, streams = [pens[i] for i in left], streams[left]
            streams = self._feed_back(pens, streams, depth)
            depth += 1

    def _feed_back(self, pens: Sequence[DraftPen], streams: Tensor, depth: int) -> Tensor:
        """Rows of the positions at which the newest drafts' predecessors stand."""
        wishes = [pen.wish for pen in pens]
        batch = ragged_batch(
            [pen.token_ids[-1:] for pen in pens],
            [wish.num_computed_tokens + depth for wish in wishes],
            {GROUP: [self._tracks.clipped(wish.request_id, wish.block_tables[GROUP]) for wish in wishes]},
            self._block_size,
        )
        return self._model.mtp_forward(batch, self._caches, streams, batch.token_ids)

    def lapse(self, request_id: str) -> None:
        self._tracks.lapse(request_id)
        self._streams.pop(request_id, None)

    def rows_from(self, request_id: str) -> int | None:
        return self._tracks.rows_from(request_id)

    def forget(self, request_id: str) -> None:
        self._tracks.forget(request_id)
        self._streams.pop(request_id, None)
