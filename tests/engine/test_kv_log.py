"""What a worker tells of its prefix cache is what a prefix hit there can use, whatever was evicted when."""

from __future__ import annotations

import random

import pytest

from tests.operations.ops_fakes import make_card
from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.kv_events import BlocksRemoved, BlocksStored, IndexedGroup, KVChange, KVSnapshot
from tokenmill.core.kv_hashes import BlockHasher
from tokenmill.engine.kvcache.kv_log import KVLog
from tokenmill.engine.kvcache.manager import KVCacheManager
from tokenmill.operations.router.index import PrefixIndex
from tokenmill.operations.worker.cache_reports import CacheReports

FULL = CacheGroup("full", GroupKind.FULL, 1)
WINDOW = CacheGroup("window", GroupKind.SLIDING_WINDOW, 1, window_tokens=5, rebuild_tokens=5)
STATE = CacheGroup("state", GroupKind.COMPRESSOR_STATE, 1, window_tokens=1, rebuild_tokens=4)
NOTHING = CacheGroup("nothing", GroupKind.COMPRESSOR_STATE, 1, window_tokens=0, rebuild_tokens=0)
DRAFT = CacheGroup("draft", GroupKind.DRAFT, 1, window_tokens=4, lookahead_tokens=1, is_required=False)
BLOCK = 4
CARD = make_card(block_size=BLOCK)


def make_manager(groups: list[CacheGroup], num_blocks: int, retention: int | None = 1) -> KVCacheManager:
    return KVCacheManager(groups, {g.name: num_blocks for g in groups}, BLOCK, retention_interval=retention)


def replay(held: list[set[bytes]], changes: tuple[KVChange, ...]) -> None:
    for change in changes:
        if isinstance(change, BlocksStored):
            assert not held[change.group] & set(change.hashes), "stored twice"
            held[change.group] |= set(change.hashes)
        elif isinstance(change, BlocksRemoved):
            assert held[change.group] >= set(change.hashes), "removed what was not there"
            held[change.group] -= set(change.hashes)
        else:
            for group in held:
                group.clear()


@pytest.mark.parametrize("retention", [1, 2, None])
@pytest.mark.parametrize("groups", [[FULL], [FULL, WINDOW, STATE, NOTHING, DRAFT]], ids=["full", "as V4"])
def test_the_index_finds_the_hit_the_worker_would_serve(groups: list[CacheGroup], retention: int | None) -> None:
    """Random prompts that share prefixes through a small cache: index and manager agree on each, after every change."""
    rng, hasher = random.Random(retention), BlockHasher(BLOCK, "0")
    manager = make_manager(groups, 24, retention)
    log, reports, index = manager.open_log(CARD), CacheReports("w", 0), PrefixIndex()
    index.join("w", 0)
    index.load(reports.begin(log))
    running: dict[str, tuple[list[int], list[bytes], int]] = {}
    num_hits = 0
    for turn in range(600):
        tokens = prompt(rng)
        hashes = hasher.hash_blocks(tokens)
        hit = manager.match(hashes, len(hashes))
        assert index.runs(hashes) == ([(hit.resume_block, index.bit_of("w"))] if hit.resume_block else [])
        num_hits += bool(hit.resume_block)
        if manager.can_start(hashes, hit, len(tokens) + 1, tokens):
            manager.start(f"r{turn}", hashes, hit, tokens)
            if manager.reserve(f"r{turn}", len(tokens)):
                running[f"r{turn}"] = (tokens, hashes, hit.resume_block * BLOCK)
            else:
                manager.release(f"r{turn}")
        for name in rng.sample(sorted(running), min(2, len(running))):
            tokens, hashes, at = running.pop(name)
            if at < len(tokens) and rng.random() < 0.8:
                at = min(len(tokens), at + rng.randint(1, 9))
                manager.advance(name, at, hashes, tokens)
                running[name] = (tokens, hashes, at)
            else:
                manager.release(name)
        if rng.random() < 0.01:
            manager.clear_cache()
        events = reports.take()
        if events is not None:
            index.apply(events)
        manager.check_integrity()
        index.sweep(50)
        index.check_integrity()
        assert not index.lost()
    assert num_hits > 50, "the workload tests nothing"


def prompt(rng: random.Random) -> list[int]:
    """One of a few beginnings, then something else."""
    head = [rng.choice([1, 2, 3])] * (BLOCK * rng.randint(1, 5))
    return head + [rng.randrange(4, 6) for _ in range(rng.randint(1, 9))]


def test_a_block_behind_a_hole_is_not_told_of() -> None:
    """C-4: chains have holes; what lies behind one is of no use until it is filled."""
    log = KVLog(make_manager([FULL], 2).open_log(CARD).format)
    a, b, c, d, e = (bytes([i]) for i in range(5))
    held: list[set[bytes]] = [set()]
    log.stored("full", [a, b, c], None)
    log.stored("full", [d], b)
    log.stored("full", [e], d)
    replay(held, log.take())
    assert held == [{a, b, c, d, e}]
    log.removed("full", b)
    log.removed("full", c)
    replay(held, log.take())
    assert held == [{a}] and log.held("full") == {a, d, e}
    assert log.snapshot() == ([a],)
    log.stored("full", [b], a)
    replay(held, log.take())
    assert held == [{a, b, d, e}]


def test_a_snapshot_in_the_middle_continues_with_the_next_number() -> None:
    manager = make_manager([FULL], 24)
    hashes = BlockHasher(BLOCK, "0").hash_blocks(list(range(32)))
    reports = CacheReports("w", 3)
    assert reports.take() is None
    reports.begin(manager.open_log(CARD))
    manager.start("r", hashes, manager.match(hashes, 0))
    manager.reserve("r", 32)
    manager.advance("r", 12, hashes)
    first = reports.take()
    assert first is not None and (first.number, first.incarnation) == (1, 3) and reports.take() is None
    manager.advance("r", 20, hashes)
    again = reports.begin(manager.open_log(CARD))
    assert isinstance(again, KVSnapshot) and again.number == 1 and again.hashes == (hashes[:5],)
    manager.advance("r", 32, hashes)
    events = reports.take()
    assert events is not None and events.number == 2 and events.changes == (BlocksStored(0, hashes[5:8]),)


def test_opening_the_log_late_forgets_what_is_cached() -> None:
    """Nobody wrote down what precedes what, so it starts empty, in the cache as in the log."""
    manager = make_manager([FULL], 24)
    hashes = BlockHasher(BLOCK, "0").hash_blocks(list(range(16)))
    manager.start("r", hashes, manager.match(hashes, 0))
    manager.reserve("r", 16)
    manager.advance("r", 12, hashes)
    log = manager.open_log(CARD)
    assert log is manager.open_log(CARD) and log.snapshot() == ([],) and manager.match(hashes, 4).num_blocks == 0
    manager.advance("r", 16, hashes)
    assert log.take() == () and log.held("full") == {hashes[3]}  # behind a hole
    assert log.format.groups == (IndexedGroup("full"),)
    manager.check_integrity()
