"""The model seam: what the runner asks of any architecture. Registered by name in models/registry.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.work import Work
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.features import Features

#: Cache tensors of a model by group name. Dimension 0 of *every* tensor is the group's physical block, so that
#: blocks can be copied, moved, offloaded and compared without knowing the model.
Caches = dict[str, list[Tensor]]


class Model(Protocol):
    """Weights and arithmetic of one architecture; holds no per-sequence state of its own.

    vocab_size      rows of the output head
    max_model_len   context limit from the config, tokens
    num_parameters  all parameters, for the model card
    """

    vocab_size: int
    max_model_len: int
    num_parameters: int

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        """The caches this model needs, with bytes per logical block of `block_size` source tokens."""
        ...

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        """Zeroed cache tensors for `num_blocks[group]` physical blocks of each group."""
        ...

    def forward(self, batch: ForwardBatch, caches: Caches) -> Tensor:
        """Write the caches' rows for the batch's positions; return final hidden states [T, C].

        Rows that are drafts (batch.draft_lens) may be written too, but must not destroy anything that is
        needed if they are rejected: such state changes only in `commit`.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, C] hidden states -> [R, V] float32 logits."""
        ...

    def commit(self, batch: ForwardBatch, caches: Caches, num_accepted: Sequence[int]) -> None:
        """After the step: of sequence b's rows the first num_accepted[b] stay, the rest never happened."""
        ...

    def step_work(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> Work:
        """FLOPs and bytes of a step over these sequences (torch-free arithmetic lives in models/work.py)."""
        ...


@runtime_checkable
class ShowingModel(Protocol):
    """A model that can show proposers what it computed on the way."""

    def forward_with_features(self, batch: ForwardBatch, caches: Caches, features: Features) -> tuple[Tensor, Tensor]:
        """`forward`'s result, and what was asked for, by row of the batch."""
        ...
