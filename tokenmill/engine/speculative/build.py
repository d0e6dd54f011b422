"""From a SpeculativeConfig and a loaded target to a proposer, or an error that says what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.errors import ConfigError
from tokenmill.engine.speculative.base import PROPOSERS, Proposer
from tokenmill.engine.speculative.chain import ChainProposer
from tokenmill.engine.speculative.config import SpeculativeConfig
from tokenmill.models.registry import LoadedModel


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a proposer is built from.

    target        the loaded model that verifies
    groups        its cache groups, for blocks of block_size tokens
    max_model_len of the engine
    load_draft    loads another checkpoint with the engine's settings (dtype, kernels)
    """

    config: SpeculativeConfig
    target: LoadedModel
    groups: tuple[CacheGroup, ...]
    block_size: int
    max_model_len: int
    load_draft: Callable[[Path], LoadedModel]

    @property
    def is_drawn(self) -> bool:
        return self.config.draft_sample_method == "probabilistic"

    def require_model(self, method: str) -> Path:
        if self.config.model is None:
            raise ConfigError(
                f'speculative method {method} needs a checkpoint: {{"method": "{method}", "model": "PATH or alias"}}'
            )
        from tokenmill.models.store import resolve_model

        return resolve_model(self.config.model)

    def refuse_model(self, method: str) -> None:
        if self.config.model is not None:
            raise ConfigError(f"speculative method {method} takes no model, but model={self.config.model!r} was given")


def build_proposer(context: BuildContext) -> Proposer:
    """ConfigError, or CheckpointError of a draft's files, where the method cannot serve this target."""
    method = context.config.method
    if method != "auto":
        return _load(method, context)
    ngram, drafter = _load("ngram", replace(context, config=context.config.without_model)), _model_method(context)
    return ngram if drafter is None else ChainProposer(ngram, _load(drafter, context))


def _load(method: str, context: BuildContext) -> Proposer:
    proposer: Proposer = PROPOSERS.load(method)(context)
    return proposer


def _model_method(context: BuildContext) -> str | None:
    """What `auto` uses beside n-grams: the drafter that was given, else the target's own MTP blocks, else nothing."""
    if context.config.model is not None:
        from tokenmill.models.dflash.config import ARCHITECTURE
        from tokenmill.models.registry import architecture_of
        from tokenmill.models.weights import open_checkpoint

        architecture = architecture_of(open_checkpoint(context.require_model("auto")))
        return "dflash" if architecture == ARCHITECTURE else "draft_model"
    return "mtp" if getattr(context.target.model, "num_mtp", 0) else None
