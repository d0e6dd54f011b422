"""KVCacheManager over several kinds of cache group: hits, windows, states, memory."""

import pytest

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.core.step import BlockTable
from tokenmill.engine.kvcache.manager import KVCacheManager, PrefixHit

FULL = CacheGroup("full", GroupKind.FULL, 100)
WINDOW = CacheGroup("window", GroupKind.SLIDING_WINDOW, 10, window_tokens=3)
STATE = CacheGroup("state", GroupKind.COMPRESSOR_STATE, 10, window_tokens=1)
FRESH = CacheGroup("fresh", GroupKind.COMPRESSOR_STATE, 10, window_tokens=0)
DRAFT = CacheGroup("draft", GroupKind.DRAFT, 10, is_required=False)
HASHES = BlockHasher(4, "v").hash_blocks(list(range(40)))


def manager(*groups, num_blocks=10):
    return KVCacheManager(groups, {g.name: num_blocks for g in groups}, block_size=4)


def compute(kv, request_id, num_tokens, *, hits=0, chunk=4):
    kv.start(request_id, HASHES, PrefixHit(hits, hits))
    for done in range(hits * 4, num_tokens, chunk):
        end = min(done + chunk, num_tokens)
        assert kv.reserve(request_id, end)
        kv.advance(request_id, end, HASHES)


def test_a_hit_is_the_longest_boundary_and_never_more_than_asked():
    kv = manager(FULL)
    assert kv.match(HASHES, 5).num_blocks == 0
    compute(kv, "a", 18)
    assert kv.match(HASHES, 9).num_blocks == 4
    assert kv.match(HASHES, 2).num_blocks == 2
    kv.release("a")
    assert kv.match(HASHES, 9).num_blocks == 4
    kv.check_integrity()


def test_a_hit_shares_blocks_and_survives_its_first_owner():
    kv = manager(FULL)
    compute(kv, "a", 16)
    kv.start("b", HASHES, PrefixHit(4, 4))
    assert kv.block_tables("b")["full"].block_ids == kv.block_tables("a")["full"].block_ids
    kv.release("a")
    kv.check_integrity()
    assert kv.pools["full"].num_active == 4


def test_window_blocks_are_freed_as_the_sequence_moves_on():
    kv = manager(FULL, WINDOW)
    compute(kv, "a", 17, chunk=1)
    table = kv.block_tables("a")["window"]
    assert (table.first_block, len(table.block_ids)) == (3, 2)  # positions 14..16 span blocks 3 and 4
    assert kv.block_tables("a")["full"].first_block == 0
    kv.check_integrity()


def test_a_hit_needs_the_window_and_the_state_at_its_boundary():
    kv = manager(FULL, WINDOW, STATE)
    compute(kv, "a", 40)
    kv.release("a")
    assert kv.match(HASHES, 9).num_blocks == 9
    # Drive the window blocks of boundary 9 out: the hit falls back to the longest boundary still whole.
    lost = kv.pools["window"].find(HASHES[8])
    kv.pools["window"]._unpublish([lost])
    kv.pools["window"]._cached.remove(lost)
    kv.pools["window"]._free.append(lost)
    assert kv.match(HASHES, 9).num_blocks == 8
    kv.start("b", HASHES, PrefixHit(8, 8))
    tables = kv.block_tables("b")
    assert (tables["window"].first_block, len(tables["window"].block_ids)) == (7, 1)
    assert (tables["state"].first_block, len(tables["state"].block_ids)) == (7, 1)
    assert len(tables["full"].block_ids) == 8


def test_a_state_that_starts_afresh_at_a_boundary_needs_nothing_for_a_hit_and_is_not_kept():
    kv = manager(FULL, FRESH)
    compute(kv, "a", 18)
    assert (kv.block_tables("a")["fresh"].first_block, len(kv.block_tables("a")["fresh"].block_ids)) == (4, 1)
    kv.release("a")
    assert kv.pools["fresh"].find(HASHES[0]) is None
    assert kv.match(HASHES, 9).num_blocks == 4
    kv.start("b", HASHES, PrefixHit(4, 4))
    assert kv.block_tables("b")["fresh"].block_ids == ()
    assert kv.reserve("b", 17) and kv.block_tables("b")["fresh"].first_block == 4


def test_an_optional_group_may_miss():
    kv = manager(FULL, DRAFT)
    compute(kv, "a", 16)
    kv.release("a")
    kv.pools["draft"].clear_cache()
    assert kv.match(HASHES, 9).num_blocks == 4
    kv.start("b", HASHES, PrefixHit(4, 4))
    assert kv.block_tables("b")["draft"].first_block == 4
    assert kv.reserve("b", 20)
    kv.check_integrity()


def test_reserve_changes_nothing_when_one_group_is_short():
    kv = KVCacheManager((FULL, WINDOW), {"full": 10, "window": 2}, block_size=4)
    kv.start("a", [], PrefixHit())
    assert not kv.reserve("a", 12)
    assert kv.pools["full"].num_active == kv.pools["window"].num_active == 0
    assert kv.reserve("a", 8)


def test_the_tail_of_a_released_sequence_is_evicted_first():
    kv = manager(FULL, num_blocks=4)
    compute(kv, "a", 16)
    kv.release("a")
    kv.start("b", [], PrefixHit())
    assert kv.reserve("b", 8)
    assert kv.match(HASHES, 4).num_blocks == 2


@pytest.mark.parametrize("hits", [0, 2, 4])
def test_can_start_counts_hits_that_are_only_cached(hits):
    kv = manager(FULL, num_blocks=5)
    compute(kv, "a", 16)
    kv.release("a")
    assert kv.can_start(HASHES, PrefixHit(hits, hits), 20)
    assert not kv.can_start(HASHES, PrefixHit(hits, hits), 21)


def test_without_prefix_caching_nothing_is_found():
    kv = KVCacheManager((FULL,), {"full": 10}, 4, enable_prefix_caching=False)
    compute(kv, "a", 16)
    assert kv.match(HASHES, 9).num_blocks == 0


def test_usage_is_by_bytes():
    kv = KVCacheManager((FULL, WINDOW), {"full": 10, "window": 10}, block_size=4)
    compute(kv, "a", 8)
    assert kv.usage == pytest.approx((2 * 100 + 1 * 10) / 1100)


def test_periodic_retention_keeps_only_what_every_nth_boundary_needs():
    kv = KVCacheManager((FULL, WINDOW), {"full": 10, "window": 10}, 4, retention_interval=3)
    compute(kv, "a", 40)
    kv.release("a")
    kept = [i for i in range(10) if kv.pools["window"].find(HASHES[i]) is not None]
    assert kept == [2, 5, 8]
    assert [kv.match(HASHES, n).num_blocks for n in range(10)] == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]


def test_recompute_retention_resumes_before_the_hit_and_keeps_no_windows():
    window = CacheGroup("window", GroupKind.SLIDING_WINDOW, 10, window_tokens=3, rebuild_tokens=6)
    kv = KVCacheManager((FULL, window), {"full": 10, "window": 10}, 4, retention_interval=None)
    compute(kv, "a", 40)
    kv.release("a")
    assert all(kv.pools["window"].find(h) is None for h in HASHES)
    assert kv.match(HASHES, 2) == PrefixHit(0, 0)  # nothing would be saved
    hit = kv.match(HASHES, 9)
    assert hit == PrefixHit(9, 7)
    kv.start("b", HASHES, hit)
    assert len(kv.block_tables("b")["full"].block_ids) == 9
    assert kv.block_tables("b")["window"] == BlockTable(7, ())
    assert kv.reserve("b", 37)
    kv.check_integrity()


def test_recompute_retention_is_refused_for_windows_alone():
    window = CacheGroup("window", GroupKind.SLIDING_WINDOW, 10, window_tokens=3, rebuild_tokens=6)
    with pytest.raises(ConfigError, match="without a window"):
        KVCacheManager((window,), {"window": 10}, 4, retention_interval=None)


def test_recompute_retention_is_refused_when_a_group_can_not_be_rebuilt():
    with pytest.raises(ConfigError, match="can not be rebuilt"):
        KVCacheManager((FULL, WINDOW), {"full": 10, "window": 10}, 4, retention_interval=None)
