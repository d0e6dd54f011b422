"""How many physical blocks each cache group gets out of a memory budget. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.errors import ConfigError
from tokenmill.core.units import format_bytes


def running_blocks(group: CacheGroup, block_size: int, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Blocks of a window group that running sequences can hold at once, the step's own tokens included.

    Each sequence keeps the window behind its last token (ceil(w / block) blocks, one more when it straddles) and
    the step's tokens add ceil(tokens / block), plus one partial block per sequence.
    """
    assert group.window_tokens is not None
    behind = -(-group.window_tokens // block_size) + 1
    return max_num_seqs * (behind + 1) + -(-max_num_batched_tokens // block_size)


def size_pools(
    groups: Sequence[CacheGroup],
    block_size: int,
    budget_bytes: int,
    *,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    retained_share: float = 1.0,
) -> dict[str, int]:
    """Physical blocks per group so that all groups together stay within `budget_bytes`.

    Groups without a window get n blocks each, window groups what running sequences need plus
    `retained_share` x n for prefix hits; n is the largest that fits, at most what max_num_seqs sequences of
    max_model_len need. ConfigError when not even one block-sized sequence fits.
    """
    growing = sum(g.bytes_per_block for g in groups if g.window_tokens is None)
    windowed = [g for g in groups if g.window_tokens is not None]
    fixed = {g.name: running_blocks(g, block_size, max_num_seqs, max_num_batched_tokens) for g in windowed}
    fixed_bytes = sum(g.bytes_per_block * fixed[g.name] for g in windowed)
    per_block = growing + retained_share * sum(g.bytes_per_block for g in windowed)
    wanted = max_num_seqs * -(-max_model_len // block_size)
    left_bytes = budget_bytes - fixed_bytes
    num_blocks = min(wanted, int(left_bytes // per_block)) if per_block else wanted
    if num_blocks < 2 or left_bytes < 0:
        least = fixed_bytes + 2 * per_block
        raise ConfigError(
            f"the KV cache was given {format_bytes(budget_bytes)}; {max_num_seqs} sequences need at least "
            f"{format_bytes(least)}: raise --kv-cache-memory-bytes or lower --max-num-seqs"
        )
    retained = int(retained_share * num_blocks)
    return {g.name: num_blocks if g.window_tokens is None else fixed[g.name] + retained for g in groups}
