"""Proposer with a DFlash drafter: features of target layers are its context, one pass drafts a whole block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.core.step import BlockTable
from tokenmill.engine.speculative.base import DraftWish, ObservedStep, Proposal
from tokenmill.engine.speculative.build import BuildContext
from tokenmill.engine.speculative.drawing import DraftPen, write_drafts
from tokenmill.engine.speculative.tracks import Tracks
from tokenmill.models.base import Caches, ShowingModel
from tokenmill.models.dflash.config import GROUP, DFlashConfig, cache_group, read_dflash_config
from tokenmill.models.dflash.drafter import DFlashDrafter
from tokenmill.models.features import Features
from tokenmill.models.registry import DTYPES, LoadedModel
from tokenmill.models.weights import open_checkpoint


@runtime_checkable
class DFlashTarget(ShowingModel, Protocol):
    """What a target lends to a drafter beside its features."""

    num_layers: int
    hidden_size: int
    vocab_size: int

    def embed(self, token_ids: Tensor) -> Tensor:
        """[n] -> [n, C] rows of the embedding."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor: ...


def build(context: BuildContext) -> DFlashProposer:
    checkpoint = open_checkpoint(context.require_model("dflash"))
    config = read_dflash_config(checkpoint.config, checkpoint.path)
    target = check_target(config, context.target, str(checkpoint.path))
    if context.config.num_drafts > config.block_size - 1:
        raise ConfigError(
            f"num_speculative_tokens={context.config.num_drafts}, but {checkpoint.path} drafts blocks of "
            f"{config.block_size}, the newest token included: ask for at most {config.block_size - 1}"
        )
    drafter = DFlashDrafter(config, checkpoint, DTYPES[context.target.dtype])
    return DFlashProposer(target, drafter, context.block_size, is_drawn=context.is_drawn)


def check_target(config: DFlashConfig, target: LoadedModel, source: str) -> DFlashTarget:
    """The drafter was made for a model of this shape, and the model shows what it needs."""
    model: Any = target.model
    if not isinstance(model, DFlashTarget):
        raise ConfigError(
            f"speculative method dflash: {target.architecture} on kernels {type(model).__name__} shows no layer "
            "outputs: use --kernels cpu, or another method"
        )
    for what, mine, its in (
        ("layers", config.num_target_layers, model.num_layers),
        ("hidden_size", config.hidden_size, model.hidden_size),
        ("vocab_size", config.vocab_size, model.vocab_size),
    ):
        if mine != its:
            raise CheckpointError(
                f"{source} is a drafter for a target with {what} {mine}; this target has {its}: "
                "use the drafter that was trained for it"
            )
    if config.mask_token_id >= model.vocab_size:
        raise CheckpointError(f"{source}: mask_token_id={config.mask_token_id} is not in the target's vocabulary")
    return model


class DFlashProposer:
    """See base.Proposer."""

    name = "dflash"

    def __init__(
        self, target: DFlashTarget, drafter: DFlashDrafter, block_size: int, *, is_drawn: bool = False
    ) -> None:
        self.features = Features(drafter.config.target_layer_ids)
        self._target, self._drafter, self._block_size, self._is_drawn = target, drafter, block_size, is_drawn
        self._tracks = Tracks(GROUP, block_size)
        self._caches: list[Tensor] = []

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return (cache_group(self._drafter.config, block_size, self._drafter.dtype.itemsize),)

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        return {GROUP: self._drafter.allocate(num_blocks[GROUP], block_size)}

    def bind(self, target: Caches, own: Caches) -> None:
        self._caches = own[GROUP]

    def observe(self, step: ObservedStep) -> None:
        """Features of all rows that stay become context rows."""
        rows, positions, slots = [], [], []
        for seen in step.sequences:
            start, end = seen.num_computed_tokens, seen.num_computed_tokens + seen.num_kept
            table = seen.block_tables[GROUP]
            new = self._tracks.extend(seen.request_id, table, start, end, len(seen.token_ids))
            if new:
                at = torch.arange(new.start, new.stop)
                rows.append(at - start + seen.first_row)
                positions.append(at)
                slots.append(self._slots(table, at))
        if rows:
            assert step.features is not None
            features = step.features[torch.cat(rows)]
            self._drafter.inject(features, torch.cat(positions), torch.cat(slots), self._caches)

    def _slots(self, table: BlockTable, positions: Tensor) -> Tensor:
        blocks = torch.tensor(table.block_ids)
        logical = torch.div(positions, self._block_size, rounding_mode="floor") - table.first_block
        return blocks[logical] * self._block_size + positions % self._block_size

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        pens = [DraftPen(wish, is_drawn=self._is_drawn) for wish in wishes]
        ready = [pen for pen in pens if self._is_ready(pen.wish)]
        if ready:
            self._write(ready, self._logits([pen.wish for pen in ready]))
        return [pen.proposal() for pen in pens]

    def _is_ready(self, wish: DraftWish) -> bool:
        track = self._tracks.get(wish.request_id)
        return track is not None and track.begin < track.end == wish.num_computed_tokens

    def _logits(self, wishes: Sequence[DraftWish]) -> Tensor:
        """[B, k, V] for the first k masks, k the largest wish. The whole block is computed, as in training."""
        config, num_drafts = self._drafter.config, max(wish.num_drafts for wish in wishes)
        masks = [config.mask_token_id] * (config.block_size - 1)
        ids = torch.tensor([[wish.token_ids[-1], *masks] for wish in wishes])
        embedded = self._target.embed(ids.flatten()).view(*ids.shape, -1)
        context = []
        for wish in wishes:
            track = self._tracks.get(wish.request_id)
            assert track is not None
            at = torch.arange(track.begin, track.end)
            context.append((track.begin, self._slots(wish.block_tables[GROUP], at)))
        starts = [wish.num_computed_tokens for wish in wishes]
        hidden = self._drafter.draft(embedded, starts, context, self._caches)[:, 1 : 1 + num_drafts]
        return self._head(hidden.flatten(0, 1)).view(len(wishes), num_drafts, -1)

    def _head(self, hidden: Tensor) -> Tensor:
        """The target's head, or the drafter's own over fewer tokens, spread to the target's ids."""
        head, id_map = self._drafter.head, self._drafter.id_map
        if head is None or id_map is None:
            return self._target.compute_logits(hidden.float())
        logits = torch.full((len(hidden), self._target.vocab_size), -torch.inf)
        logits[:, id_map] = torch.nn.functional.linear(hidden, head).float()
        return logits

    def _write(self, pens: list[DraftPen], logits: Tensor) -> None:
        for i in range(logits.shape[1]):
            open_pens = [(pen, row) for pen, row in zip(pens, logits[:, i], strict=True) if not pen.is_done]
            if not open_pens:
                return
            write_drafts([pen for pen, _ in open_pens], torch.stack([row for _, row in open_pens]))

    def lapse(self, request_id: str) -> None:
        self._tracks.lapse(request_id)

    def rows_from(self, request_id: str) -> int | None:
        return self._tracks.rows_from(request_id)

    def forget(self, request_id: str) -> None:
        self._tracks.forget(request_id)
