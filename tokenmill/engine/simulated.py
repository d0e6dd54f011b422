"""An engine without a model: the production scheduler over the counting runner (runners/modelled.py).

Used by the twin on virtual time, and by process tests on real time. Never imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.model_card import ModelCard
from tokenmill.core.step import StepPlan
from tokenmill.engine.card_names import text_names
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.kvcache.build import build_kv
from tokenmill.engine.runners.modelled import ModelledRunner, linear_step_s
from tokenmill.engine.scheduler import Scheduler
from tokenmill.engine.structured.desk import GrammarDesk
from tokenmill.engine.structured.opening import open_compiler

_BYTES_PER_TOKEN = 1024


def simulated_engine(
    config: EngineConfig,
    *,
    name: str = "counting",
    vocab_size: int = 256,
    max_model_len: int = 4096,
    kv_tokens: int = 65536,
    groups: Sequence[CacheGroup] | None = None,
    step_s: Callable[[StepPlan], float] | None = None,
    clock: Clock | None = None,
    pace: Callable[[float], None] = time.sleep,
    tokenizer_path: str | None = None,
) -> Engine:
    """
    kv_tokens  capacity of the KV pool when the config gives no bytes (1 KiB per token)
    groups     cache groups to manage; default one "full" group
    clock      what step seconds are measured with; default the system's
    """
    block_size = config.block_size or 16
    max_model_len = min(config.max_model_len or max_model_len, max_model_len)
    groups = groups or [CacheGroup("full", GroupKind.FULL, _BYTES_PER_TOKEN * block_size)]
    kv = build_kv(
        groups,
        config,
        block_size=block_size,
        max_model_len=max_model_len,
        budget_bytes=config.kv_cache_memory_bytes or kv_tokens * _BYTES_PER_TOKEN,
    )
    card = ModelCard(
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
    runner = ModelledRunner(vocab_size, step_s or linear_step_s(), pace)
    grammars = GrammarDesk(lambda: open_compiler(card, config.grammar_backend, config.grammar_deadline_s))
    return Engine(card, Scheduler(config.scheduler_limits, kv), runner, clock or SystemClock(), grammars=grammars)
