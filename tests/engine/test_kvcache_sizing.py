"""Pool sizes: within the budget, enough for what runs, refused when nothing fits."""

import pytest

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.engine.kvcache.sizing import running_blocks, size_pools

FULL = CacheGroup("full", GroupKind.FULL, 100)
WINDOW = CacheGroup("window", GroupKind.SLIDING_WINDOW, 10, window_tokens=7)
LIMITS = {"max_model_len": 1000, "max_num_seqs": 2, "max_num_batched_tokens": 16}


def used(sizes):
    return sum(g.bytes_per_block * sizes.get(g.name, 0) for g in (FULL, WINDOW))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("budget", [1_000, 5_000, 20_000])
def test_the_budget_is_kept_and_nearly_spent(budget, share):
    sizes = size_pools((FULL, WINDOW), 4, budget, retained_share=share, **LIMITS)
    assert budget - 120 < used(sizes) <= budget
    assert sizes["window"] >= running_blocks(WINDOW, 4, 2, 16)


def test_no_more_than_every_sequence_at_its_full_length():
    assert size_pools((FULL,), 4, 10**9, **LIMITS) == {"full": 2 * 250}


def test_too_little_memory_is_refused_with_what_would_do():
    with pytest.raises(ConfigError, match=r"at least .*: raise --kv-cache-memory-bytes or lower --max-num-seqs$"):
        size_pools((FULL, WINDOW), 4, 200, **LIMITS)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_model_of_windows_alone(share):
    """All layers see a window: nothing grows with the sequence."""
    sizes = size_pools((WINDOW,), 4, 10**6, retained_share=share, **LIMITS)
    assert sizes["window"] >= running_blocks(WINDOW, 4, 2, 16)
    with pytest.raises(ConfigError):
        size_pools((WINDOW,), 4, 50, retained_share=share, **LIMITS)
