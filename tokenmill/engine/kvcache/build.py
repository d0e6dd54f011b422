"""The cache manager of an engine: pools sized for its settings."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.engine.kvcache.sizing import size_pools


def build_kv(
    groups: Sequence[CacheGroup], config: EngineConfig, *, block_size: int, max_model_len: int, budget_bytes: int
) -> KVCacheManager:
    """budget_bytes: for all groups together. ConfigError when it is too little."""
    num_blocks = size_pools(
        groups,
        block_size,
        budget_bytes,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        retained_share=config.retained_share,
    )
    return KVCacheManager(
        groups,
        num_blocks,
        block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        retention_interval=config.retention_interval,
    )
