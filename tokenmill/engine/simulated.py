"""An engine without a model: the production scheduler over the counting runner (runners/modelled.py).

Used by the twin on virtual time, and by process tests on real time. Never imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.model_card import ModelCard
from tokenmill.cost.steptime.shape import StepShape, StepTime
from tokenmill.engine.card_names import text_names
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.kvcache.build import build_kv
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.overlap import engine_class
from tokenmill.engine.plan_log import make_scheduler
from tokenmill.engine.runners.modelled import ModelledRunner
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.skipping import SkippingScheduler
from tokenmill.engine.skipping_engine import SkippingEngine
from tokenmill.engine.structured.desk import GrammarDesk
from tokenmill.engine.structured.opening import open_compiler

_BYTES_PER_TOKEN = 1024
#: A worker in the twin reports at least this often.
_MOST_SKIP_S = 1.0


def simulated_engine(
    config: EngineConfig,
    *,
    name: str = "counting",
    vocab_size: int = 256,
    max_model_len: int = 4096,
    kv_tokens: int = 65536,
    groups: Items[CacheGroup] | None = None,
    step_time: StepTime | None = None,
    clock: Clock | None = None,
    pace: Callable[[float], None] = time.sleep,
    tokenizer_path: str | None = None,
) -> Engine:
    """
    kv_tokens  capacity of the KV pool when the config gives no bytes (1 KiB per token)
    groups     cache groups to manage; default one "full" group
    step_time  seconds of a step by its shape
    clock      what step seconds are measured with; default the system's
    """
    card, kv = _card_and_kv(
        config,
        name=name,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        groups=groups,
        budget_bytes=kv_tokens * _BYTES_PER_TOKEN,
        tokenizer_path=tokenizer_path,
    )
    times = step_time or LinearStepTime()
    runner = ModelledRunner(vocab_size, lambda plan: times.step_s(StepShape.of_plan(plan)), pace)
    grammars = GrammarDesk(lambda: open_compiler(card, config.grammar_backend, config.grammar_deadline_s))
    scheduler = make_scheduler(config.scheduler_limits, kv, path=config.plan_log)
    return engine_class(config)(card, scheduler, runner, clock or SystemClock(), grammars=grammars)


def skipping_engine(
    config: EngineConfig,
    *,
    clock: Clock,
    pace: Callable[[float], None],
    step_time: StepTime,
    name: str = "counting",
    vocab_size: int = 256,
    max_model_len: int = 4096,
    groups: Items[CacheGroup] | None = None,
    budget_bytes: int = 65536 * _BYTES_PER_TOKEN,
    card: ModelCard | None = None,
    is_quiet: bool = False,
    context_weight: float = 0.0,
) -> SkippingEngine:
    """The same on virtual time, many steps at once (skipping_engine.py).

    budget_bytes  of the KV pools, unless the config gives it
    card          of an equal worker: cards are shared by a fleet of thousands
    """
    made, kv = _card_and_kv(
        config,
        name=name,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        groups=groups,
        budget_bytes=budget_bytes,
        card=card,
    )
    scheduler = SkippingScheduler(config.scheduler_limits, kv, _count_on(vocab_size))
    return SkippingEngine(
        made,
        scheduler,
        clock,
        step_time=step_time,
        pace=pace,
        is_quiet=is_quiet,
        context_weight=context_weight,
        most_skip_s=_MOST_SKIP_S,
    )


def _count_on(vocab_size: int) -> Callable[[Sequence, int], list[int]]:
    """Each token is the one before it plus one, around the vocabulary."""

    def draw(sequence: Sequence, num_tokens: int) -> list[int]:
        start = sequence.token_ids[-1] + 1
        if start + num_tokens <= vocab_size:
            return list(range(start, start + num_tokens))
        return [(start + index) % vocab_size for index in range(num_tokens)]

    return draw


def _card_and_kv(
    config: EngineConfig,
    *,
    name: str,
    vocab_size: int,
    max_model_len: int,
    groups: Items[CacheGroup] | None,
    budget_bytes: int,
    tokenizer_path: str | None = None,
    card: ModelCard | None = None,
) -> tuple[ModelCard, KVCacheManager]:
    block_size = config.block_size or 16
    max_model_len = min(config.max_model_len or max_model_len, max_model_len)
    groups = groups or [CacheGroup("full", GroupKind.FULL, _BYTES_PER_TOKEN * block_size)]
    kv = build_kv(
        groups,
        config,
        block_size=block_size,
        max_model_len=max_model_len,
        budget_bytes=config.kv_cache_memory_bytes or budget_bytes,
    )
    card = card or ModelCard(
        name=name,
        architecture="counting",
        max_model_len=max_model_len,
        kv_capacity_tokens=kv.capacity_tokens or max_model_len,
        max_num_seqs=config.max_num_seqs,
        vocab_size=vocab_size,
        block_size=block_size,
        weights_version="counting",
        hash_algorithm=config.hash_algorithm,
        tokenizer_path=tokenizer_path,
        **text_names(
            config,
            name=name,
            architecture="counting",
            tokenizer_path=None if tokenizer_path is None else Path(tokenizer_path),
        ),
    )
    return card, kv
