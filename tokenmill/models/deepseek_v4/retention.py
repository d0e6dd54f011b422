"""What keeping window rows and compressor state for prefix hits costs, in bytes kept and FLOPs redone; torch-free.

Compressed entries and indexer keys are always kept: they are small and never change. Window rows (and the overlap
rows of CSA) are needed only behind the point where a sequence goes on, which leaves three choices (DeepSeek V4
technical report, section on KV cache reuse): keep all of them, keep them at every p-th block boundary and compute
the tokens since, or keep none and compute the last n_layers x (sliding_window - 1) tokens, which is how far back
the window of the last layer reaches through the windows below it (groups.rebuild_tokens). All three give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.errors import ConfigError
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import DEFAULT_BLOCK_SIZE, CacheFormats, cache_groups, rebuild_tokens
from tokenmill.models.deepseek_v4.work import token_flops


@dataclass(frozen=True, slots=True)
class RetentionCost:
    """
    policy            all | periodic | recompute
    kept_bytes        window rows and CSA state kept for a prefix of the given length, beside its entries
    entry_bytes       compressed entries and indexer keys of that prefix, the same under every policy
    recomputed_tokens per hit, on average over hits at block boundaries
    hit_flops         what computing them again costs
    """

    policy: str
    kept_bytes: int
    entry_bytes: int
    recomputed_tokens: float
    hit_flops: float


def retention_costs(
    config: DeepseekV4Config,
    formats: CacheFormats,
    prefix_tokens: int,
    *,
    period_blocks: int = 8,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> tuple[RetentionCost, RetentionCost, RetentionCost]:
    """(all, periodic, recompute) for a prefix of `prefix_tokens` that hits at its last whole block."""
    if period_blocks < 1:
        raise ConfigError(f"period_blocks={period_blocks} is not possible: give at least 1, which keeps all")
    groups = cache_groups(config, formats, block_size)
    num_blocks = prefix_tokens // block_size
    per_boundary = sum(g.bytes_per_block for g in groups if g.window_tokens and g.is_required)
    entries = num_blocks * sum(g.bytes_per_block for g in groups if g.window_tokens is None)
    # A window longer than a block needs more than one block of rows behind each kept boundary.
    blocks_per_checkpoint = min(period_blocks, max(1, -(-(config.sliding_window - 1) // block_size)))
    since_checkpoint = (min(period_blocks, max(1, num_blocks)) - 1) / 2 * block_size
    reach = min(prefix_tokens, rebuild_tokens(config))

    def cost(policy: str, kept_blocks: int, tokens: float) -> RetentionCost:
        flops = tokens * token_flops(config, prefix_tokens)
        return RetentionCost(policy, kept_blocks * per_boundary, entries, tokens, flops)

    return (
        cost("all", num_blocks, 0.0),
        cost("periodic", num_blocks // period_blocks * blocks_per_checkpoint, since_checkpoint),
        cost("recompute", 0, float(reach)),
    )
