"""From a model path and an EngineConfig to a running Engine: resolves every `auto`, sizes pools, writes the card."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.clock import SystemClock
from tokenmill.core.errors import ConfigError
from tokenmill.core.model_card import ModelCard
from tokenmill.engine.card_names import text_names
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.kvcache.build import build_kv
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.overlap import engine_class
from tokenmill.engine.plan_log import make_scheduler
from tokenmill.engine.speculative.choose import depth_policy, target_extras
from tokenmill.engine.structured.desk import GrammarDesk
from tokenmill.engine.structured.opening import open_compiler
from tokenmill.infra.memory import read_host_memory

if TYPE_CHECKING:
    from tokenmill.engine.speculative.base import Proposer
    from tokenmill.models.base import Model
    from tokenmill.models.registry import LoadedModel

_DEFAULT_KV_SHARE = 0.4
_PROBE_CONTEXT = 1024
_DEFAULT_KV_LIMIT_BYTES = 4 * 2**30
#: Threads wait for each other by spinning: far more of them than cores and a step never ends.
_MOST_THREADS_PER_CORE = 4
_MOST_THREADS_ANYWHERE = 16


def load_engine(
    model_path: Path | str,
    config: EngineConfig,
    *,
    name: str,
    num_workers: int = 1,
    worker_index: int | None = None,
) -> Engine:
    """Load a model folder or .gguf file and build its engine.

    name         what clients call the model
    num_workers  workers that share this machine: threads and memory are divided by it
    worker_index  which of them this is: the process is bound to its share of the cores; None: it is not

    Raises CheckpointError or ConfigError when the model or the settings cannot be used.
    """
    engine_class(config)  # refused before anything is loaded
    num_threads = _take_cores(config.num_threads, num_workers, worker_index)
    import torch

    from tokenmill.engine.runners.torch_runner import TorchRunner
    from tokenmill.models.registry import load_model

    torch.set_num_threads(num_threads)
    loaded = load_model(
        Path(model_path),
        dtype=resolve_dtype(config),
        deterministic=config.deterministic,
        backend=config.kernels,
        weight_format="bf16" if config.quantization == "none" else config.quantization,
        extra=config.model_extras | target_extras(config.speculative_config, Path(model_path)),
    )
    model = loaded.model
    block_size = config.block_size or loaded.default_block_size
    max_model_len = _max_model_len(config, model.max_model_len)
    _check_budget(config, max_model_len)
    groups = model.cache_groups(block_size)
    proposer = _proposer(loaded, config, groups, block_size, max_model_len)
    draft_groups = () if proposer is None else proposer.cache_groups(block_size)
    kv = build_kv(
        (*groups, *draft_groups),
        config,
        block_size=block_size,
        max_model_len=max_model_len,
        budget_bytes=config.kv_cache_memory_bytes or default_kv_bytes(read_host_memory().available_bytes, num_workers),
    )
    card = _card(loaded, config, name, kv, max_model_len)
    caches = model.allocate_caches({group.name: kv.num_blocks[group.name] for group in groups}, block_size)
    speculator = None
    if proposer is not None:
        from tokenmill.engine.speculative.speculator import Speculator

        draft_blocks = {group.name: kv.num_blocks[group.name] for group in draft_groups}
        draft_caches = proposer.allocate_caches(draft_blocks, block_size)
        proposer.bind(caches, draft_caches)
        speculator = Speculator(proposer, draft_caches, time.perf_counter)
    runner = TorchRunner(model, caches, block_size, speculator)
    depth = depth_policy(config.speculative_config)
    scheduler = make_scheduler(config.scheduler_limits, kv, depth, path=config.plan_log)
    grammars = GrammarDesk(lambda: open_compiler(card, config.grammar_backend, config.grammar_deadline_s))
    return engine_class(config)(
        card, scheduler, runner, SystemClock(), context_weight=_context_weight(model), grammars=grammars
    )


def _proposer(
    loaded: LoadedModel, config: EngineConfig, groups: tuple[CacheGroup, ...], block_size: int, max_model_len: int
) -> Proposer | None:
    """What speculates for this target; a draft checkpoint is loaded with the target's settings."""
    if config.speculative_config is None:
        return None
    from tokenmill.engine.speculative.build import BuildContext, build_proposer
    from tokenmill.models.registry import load_model

    def load_draft(path: Path) -> LoadedModel:
        return load_model(path, dtype=loaded.dtype, deterministic=config.deterministic, backend=config.kernels)

    context = BuildContext(config.speculative_config, loaded, groups, block_size, max_model_len, load_draft)
    return build_proposer(context)


def _take_cores(asked: int | None, num_workers: int, index: int | None) -> int:
    """Threads of this worker; where every worker has cores of its own, it stays on them: threads that are moved, or
    that meet another worker's on a core, make all threads of a step wait."""
    cores = sorted(os.sched_getaffinity(0))
    num_threads = thread_count(asked, num_cores=len(cores), num_workers=num_workers)
    if index is not None and 1 < num_workers <= len(cores) and num_threads <= len(cores) // num_workers:
        os.sched_setaffinity(0, share_of_cores(cores, index, num_workers))
    return num_threads


def share_of_cores(cores: Sequence[int], index: int, num_workers: int) -> list[int]:
    """Neighbouring cores of worker `index`; what division leaves over goes to the first workers."""
    size, more = divmod(len(cores), num_workers)
    begin = index % num_workers * size + min(index % num_workers, more)
    return list(cores[begin : begin + size + (index % num_workers < more)])


def thread_count(asked: int | None, *, num_cores: int, num_workers: int) -> int:
    """Threads of one worker: what was asked, or its share of the cores. ConfigError when they could never work."""
    most = max(_MOST_THREADS_PER_CORE * num_cores, _MOST_THREADS_ANYWHERE)
    if asked is not None and asked > most:
        raise ConfigError(f"num_threads={asked} is too many for the {num_cores} cores here: ask for at most {most}")
    return asked or max(1, num_cores // num_workers)


def _card(loaded: LoadedModel, config: EngineConfig, name: str, kv: KVCacheManager, max_model_len: int) -> ModelCard:
    return ModelCard(
        name=name,
        architecture=loaded.architecture,
        max_model_len=max_model_len,
        kv_capacity_tokens=kv.capacity_tokens or max_model_len,
        max_num_seqs=config.max_num_seqs,
        vocab_size=loaded.model.vocab_size,
        block_size=kv.block_size,
        weights_version=loaded.weights_version,
        hash_algorithm=config.hash_algorithm,
        tokenizer_path=None if loaded.tokenizer_path is None else str(loaded.tokenizer_path),
        eos_token_ids=tuple(loaded.eos_token_ids),
        num_parameters=loaded.model.num_parameters,
        dtype=loaded.dtype,
        created_s=int(time.time()),
        **text_names(
            config,
            name=name,
            architecture=loaded.architecture,
            tokenizer_path=loaded.tokenizer_path,
            chat_encoding=loaded.chat_encoding,
        ),
    )


def _context_weight(model: Model) -> float:
    """Attention FLOPs that one more context token adds to a row, over the row's FLOPs without context."""
    bare, far = (model.step_work([1], [context]).flops for context in (0, _PROBE_CONTEXT))
    return (far - bare) / _PROBE_CONTEXT / bare


def resolve_dtype(config: EngineConfig) -> str:
    """auto: bfloat16, halving bytes per step; float32 when deterministic, where bits matter more."""
    if config.dtype != "auto":
        return config.dtype
    return "float32" if config.deterministic else "bfloat16"


def _max_model_len(config: EngineConfig, model_limit: int) -> int:
    if config.max_model_len is None:
        return model_limit
    if config.max_model_len > model_limit:
        raise ConfigError(
            f"max_model_len={config.max_model_len}, but the model was made for {model_limit}: ask for at most that"
        )
    return config.max_model_len


def _check_budget(config: EngineConfig, max_model_len: int) -> None:
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill a whole prompt must fit one step: max_num_batched_tokens="
            f"{config.max_num_batched_tokens} < max_model_len={max_model_len}; raise the first or lower the second"
        )


def default_kv_bytes(available_bytes: int, num_workers: int) -> int:
    """KV cache of one of `num_workers` workers that share a machine with `available_bytes` of free memory."""
    return int(min(available_bytes * _DEFAULT_KV_SHARE / num_workers, _DEFAULT_KV_LIMIT_BYTES))
