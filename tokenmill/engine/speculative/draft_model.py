"""Proposer with a small model of its own: it reads what the target reads and writes ahead, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.core.step import BlockTable
from tokenmill.engine.speculative.base import DraftWish, ObservedStep, Proposal
from tokenmill.engine.speculative.build import BuildContext
from tokenmill.engine.speculative.drawing import DraftPen, write_drafts
from tokenmill.engine.speculative.tracks import Tracks
from tokenmill.models.base import Caches, Model
from tokenmill.models.ragged import ragged_batch
from tokenmill.models.registry import LoadedModel

_PREFIX = "draft_"
#: Groups whose rejected rows are overwritten before they are read; others change state that a draft pass would spoil.
_ROWS = (GroupKind.FULL, GroupKind.SLIDING_WINDOW)


def build(context: BuildContext) -> DraftModelProposer:
    draft = context.load_draft(context.require_model("draft_model"))
    check_vocabularies(draft, context.target)
    groups = draft.model.cache_groups(context.block_size)
    if any(group.kind not in _ROWS for group in groups):
        raise ConfigError(
            f"speculative method draft_model: {draft.architecture} keeps more than key and value rows, which cannot be "
            "taken back while it drafts: use a draft model with ordinary attention"
        )
    full = next((group.name for group in groups if group.window_tokens is None), None)
    if full is None:
        raise ConfigError("speculative method draft_model: a draft model needs a layer without a window")
    if draft.model.max_model_len < context.max_model_len:
        raise ConfigError(
            f"the draft model was made for {draft.model.max_model_len} tokens, the engine serves "
            f"{context.max_model_len}: lower max_model_len or use another draft model"
        )
    return DraftModelProposer(draft.model, full, context.target.model.vocab_size, context.block_size, context.is_drawn)


def check_vocabularies(draft: LoadedModel, target: LoadedModel) -> None:
    """A token id has to mean the same to both. Heads may differ in rows that no token uses."""
    if draft.tokenizer_path is None or target.tokenizer_path is None:
        if draft.model.vocab_size != target.model.vocab_size:
            raise ConfigError(
                f"the draft model has a vocabulary of {draft.model.vocab_size}, the target one of "
                f"{target.model.vocab_size}: use a draft model with the target's tokenizer"
            )
        return
    from tokenmill.text.tokenizer import Tokenizer

    mine, its = (Tokenizer.load(path).vocabulary() for path in (draft.tokenizer_path, target.tokenizer_path))
    if mine != its:
        num_equal = sum(its.get(text) == token_id for text, token_id in mine.items())
        raise ConfigError(
            f"draft and target have different vocabularies: {num_equal} of {len(its)} tokens mean the same: "
            "use a draft model with the target's tokenizer"
        )


class DraftModelProposer:
    """See base.Proposer. Its rows follow the target's step by step; only what drafts already wrote is not redone.

    group       of the draft model, one without a window: it tells where rows begin
    vocab_size  of the target: ids beyond it are never drafted
    """

    name = "draft_model"
    features = None

    def __init__(self, model: Model, group: str, vocab_size: int, block_size: int, is_drawn: bool = False) -> None:
        self._model, self._group, self._vocab_size = model, group, vocab_size
        self._block_size, self._is_drawn = block_size, is_drawn
        self._tracks = Tracks(_PREFIX + group, block_size)
        self._written: dict[str, int] = {}  # rows of drafts exist below this position
        self._names = [g.name for g in model.cache_groups(block_size)]
        self._caches: Caches = {}

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return tuple(
            replace(g, name=_PREFIX + g.name, kind=GroupKind.DRAFT, is_required=False)
            for g in self._model.cache_groups(block_size)
        )

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        own = {name.removeprefix(_PREFIX): count for name, count in num_blocks.items()}
        self._caches = self._model.allocate_caches(own, block_size)
        return {_PREFIX + name: tensors for name, tensors in self._caches.items()}

    def bind(self, target: Caches, own: Caches) -> None:
        """The model's own caches were kept when they were allocated: it may know them by identity."""

    # -- after a step --

    def observe(self, step: ObservedStep) -> None:
        """Rows of everything that stays, but for those that drafts have written already."""
        tokens, starts, tables = [], [], []
        for seen in step.sequences:
            start, end = seen.num_computed_tokens, seen.num_computed_tokens + seen.num_kept
            written = self._written.pop(seen.request_id, start)
            table = seen.block_tables[_PREFIX + self._group]
            new = self._tracks.extend(seen.request_id, table, start, end, len(seen.token_ids))
            if not self._has_all(seen.request_id):
                continue  # a prefix hit that the draft's blocks missed: this sequence gets no drafts
            first = max(new.start, min(written, end))
            if first < end:
                tokens.append(seen.token_ids[first:end])
                starts.append(first)
                tables.append(seen.block_tables)
        if tokens:
            self._forward(tokens, starts, tables)

    def _has_all(self, request_id: str) -> bool:
        track = self._tracks.get(request_id)
        return track is not None and not track.has_lapsed and track.begin == 0

    def _forward(
        self, tokens: Sequence[Sequence[int]], starts: Sequence[int], tables: Sequence[dict[str, BlockTable]]
    ) -> Tensor:
        """Hidden states of each sequence's last row [B, C]."""
        by_group = {name: [table[_PREFIX + name] for table in tables] for name in self._names}
        batch = ragged_batch(tokens, starts, by_group, self._block_size)
        hidden = self._model.forward(batch, self._caches)
        self._model.commit(batch, self._caches, [len(ids) for ids in tokens])
        return hidden[torch.tensor(batch.cu_seqlens[1:]) - 1]

    # -- before a step --

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        pens = [DraftPen(wish, is_drawn=self._is_drawn) for wish in wishes]
        writing = [pen for pen in pens if self._is_ready(pen.wish)]
        while writing:
            tokens = [(pen.token_ids or pen.wish.token_ids)[-1:] for pen in writing]
            starts = [pen.wish.num_computed_tokens + len(pen.token_ids) for pen in writing]
            hidden = self._forward(tokens, starts, [pen.wish.block_tables for pen in writing])
            write_drafts(writing, self._logits(hidden))
            for pen, start in zip(writing, starts, strict=True):
                self._written[pen.wish.request_id] = start + 1
            writing = [pen for pen in writing if not pen.is_done]
        return [pen.proposal() for pen in pens]

    def _logits(self, hidden: Tensor) -> Tensor:
        """[B, V] of the target's ids."""
        logits = self._model.compute_logits(hidden)[:, : self._vocab_size]
        missing = self._vocab_size - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits

    def _is_ready(self, wish: DraftWish) -> bool:
        track = self._tracks.get(wish.request_id)
        return track is not None and self._has_all(wish.request_id) and track.end == wish.num_computed_tokens

    def lapse(self, request_id: str) -> None:
        self._tracks.lapse(request_id)
        self._written.pop(request_id, None)

    def rows_from(self, request_id: str) -> int | None:
        return 0 if self._has_all(request_id) else None

    def forget(self, request_id: str) -> None:
        self._tracks.forget(request_id)
        self._written.pop(request_id, None)
