"""Which sequence uses which blocks, over all cache groups of a model: reserve, advance, prefix hits, release.

Consumes only the groups' declarations (core/cache_groups); knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.core.kv_events import KVFormat
from tokenmill.core.model_card import ModelCard
from tokenmill.core.step import BlockTable
from tokenmill.engine.kvcache.kv_log import KVLog
from tokenmill.engine.kvcache.pool import BlockPool


@dataclass(slots=True)
class _GroupBlocks:
    """Blocks of one sequence in one group: logical blocks first .. first + len(ids)."""

    first: int = 0
    ids: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.ids)


@dataclass(slots=True)
class _SequenceBlocks:
    by_lane: list[_GroupBlocks]
    num_published: int  # logical blocks that were published (or came from the cache)


@dataclass(frozen=True, slots=True)
class _Lane:
    """Groups whose blocks always come, are published and go together: they share a pool, and a block's id.

    group            the first of them, which speaks for all
    bytes_per_block  of all of them
    is_plain         every block is published under its hash alone
    is_kept          some boundary needs its blocks, and is kept
    """

    group: CacheGroup
    names: tuple[str, ...]
    pool: BlockPool
    bytes_per_block: int
    is_plain: bool
    is_kept: bool


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """`num_blocks` blocks of the groups without a window are there; computing resumes at block `resume_block`.

    The two differ only when window groups are rebuilt: blocks between them are computed again, without writing
    the groups that have them.
    """

    num_blocks: int = 0
    resume_block: int = 0


class KVCacheManager:
    """
    groups              of the model; at least one has no window
    num_blocks          physical blocks per group
    retention_interval  window groups are published at every n-th block boundary; None: never, a hit rebuilds them
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        num_blocks: dict[str, int],
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        retention_interval: int | None = 1,
    ) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.retention_interval = retention_interval
        self._rebuild_blocks = _rebuild_blocks(groups, block_size) if retention_interval is None else 0
        self._lanes = [self._lane(together, num_blocks) for together in _together(self.groups, num_blocks)]
        self.pools = {name: lane.pool for lane in self._lanes for name in lane.names}
        self._place_of = {name: place for place, lane in enumerate(self._lanes) for name in lane.names}
        self._windowed = [
            (place, lane.pool, lane.group.window_tokens)
            for place, lane in enumerate(self._lanes)
            if lane.group.window_tokens is not None
        ]
        self._sequences: dict[str, _SequenceBlocks] = {}
        self._total_bytes = sum(g.bytes_per_block * num_blocks[g.name] for g in self.groups)
        self._log: KVLog | None = None

    def _lane(self, groups: Sequence[CacheGroup], num_blocks: dict[str, int]) -> _Lane:
        group, window, retention = groups[0], groups[0].window_tokens, self.retention_interval
        return _Lane(
            group,
            tuple(g.name for g in groups),
            BlockPool(group.name, num_blocks[group.name]),
            sum(g.bytes_per_block for g in groups),
            is_plain=not group.lookahead_tokens and (window is None or (window > 0 and retention == 1)),
            is_kept=window is None or (retention is not None and (retention != 1 or window > 0)),
        )

    def open_log(self, card: ModelCard) -> KVLog:
        """From now on changes of the prefix cache are written down. What is cached already is forgotten: nobody
        wrote down what precedes what."""
        if self._log is None:
            self.clear_cache()
            rebuild_blocks = self._rebuild_blocks if self.retention_interval is None else None
            self._log = KVLog(KVFormat.of(card, self.groups if self.enable_prefix_caching else (), rebuild_blocks))
            for lane in self._lanes:
                lane.pool.on_removed = partial(_write_removed, self._log, lane.names)
        return self._log

    # -- prefix hits --

    def match(self, block_hashes: Sequence[bytes], max_blocks: int) -> PrefixHit:
        """The hit that saves most: its boundary is the longest that every required group can serve."""
        if not self.enable_prefix_caching:
            return PrefixHit()
        num_hit_blocks = min(max_blocks, len(block_hashes))
        required = [lane for lane in self._lanes if lane.group.is_required]
        for lane in required:
            if lane.group.window_tokens is None:
                num_hit_blocks = self._leading_hits(lane, block_hashes, num_hit_blocks)
        if self.retention_interval is None:
            resume_block = num_hit_blocks - self._rebuild_blocks
            return PrefixHit(num_hit_blocks, resume_block) if resume_block > 0 else PrefixHit()
        windowed = [lane for lane in required if lane.group.window_tokens is not None]
        while num_hit_blocks and not all(self._has_boundary(lane, block_hashes, num_hit_blocks) for lane in windowed):
            num_hit_blocks -= 1
        return PrefixHit(num_hit_blocks, num_hit_blocks)

    def _leading_hits(self, lane: _Lane, block_hashes: Sequence[bytes], limit: int) -> int:
        find = lane.pool.find
        return next((i for i in range(limit) if find(block_hashes[i]) is None), limit)

    def _has_boundary(self, lane: _Lane, block_hashes: Sequence[bytes], boundary: int) -> bool:
        find = lane.pool.find
        return all(find(block_hashes[i]) is not None for i in self._needed_at(lane.group, boundary))

    def _needed_at(self, group: CacheGroup, boundary: int) -> range:
        return range(group.first_needed_block(boundary * self.block_size, self.block_size), boundary)

    # -- life of a sequence --

    def can_start(
        self, block_hashes: Sequence[bytes], hit: PrefixHit, num_tokens: int, token_ids: Sequence[int] = ()
    ) -> bool:
        """Is there room for a new sequence to grow to `num_tokens`, its hits included? token_ids: see `start`."""
        for lane in self._lanes:
            hit_ids = self._hit_blocks(lane, block_hashes, hit, token_ids)
            pinned = sum(map(lane.pool.is_cached, hit_ids))
            new = self._live_blocks(lane.group, num_tokens) - len(hit_ids)
            if max(new, 0) + pinned > lane.pool.num_available:
                return False
        return True

    def _live_blocks(self, group: CacheGroup, num_tokens: int) -> int:
        """Blocks a sequence of `num_tokens` holds, the block being written included."""
        return -(-num_tokens // self.block_size) - group.first_needed_block(num_tokens, self.block_size)

    def _hit_blocks(
        self, lane: _Lane, block_hashes: Sequence[bytes], hit: PrefixHit, token_ids: Sequence[int]
    ) -> list[int]:
        """Blocks of this lane that a hit takes over; empty when an optional group misses or a window is rebuilt."""
        group = lane.group
        if not hit.num_blocks or (group.window_tokens is not None and hit.resume_block < hit.num_blocks):
            return []
        keys = [self._key(group, i, block_hashes, token_ids) for i in self._needed_at(group, hit.num_blocks)]
        found = [None if key is None else lane.pool.find(key) for key in keys]
        present = [block_id for block_id in found if block_id is not None]
        assert len(present) == len(found) or not group.is_required, f"group {group.name}: hit vanished"
        return present if len(present) == len(found) else []

    def _key(
        self, group: CacheGroup, index: int, block_hashes: Sequence[bytes], token_ids: Sequence[int]
    ) -> bytes | None:
        """What the content of block `index` is published under: its hash and the tokens behind it that its rows depend
        on; None where those are not known."""
        end = (index + 1) * self.block_size
        ahead = token_ids[end : end + group.lookahead_tokens]
        if len(ahead) < group.lookahead_tokens:
            return None
        return block_hashes[index] + b"".join(token_id.to_bytes(4, "little") for token_id in ahead)

    def start(
        self, request_id: str, block_hashes: Sequence[bytes], hit: PrefixHit, token_ids: Sequence[int] = ()
    ) -> None:
        """Register a sequence and take over the blocks of its prefix hit.

        token_ids   of the sequence, for groups that look ahead; without them these groups miss
        """
        assert request_id not in self._sequences, f"{request_id} already holds blocks"
        by_lane = []
        for lane in self._lanes:
            ids = self._hit_blocks(lane, block_hashes, hit, token_ids)
            for block_id in ids:
                lane.pool.acquire(block_id)
            end = hit.num_blocks if lane.group.window_tokens is None else hit.resume_block
            by_lane.append(_GroupBlocks(end - len(ids), ids))
        self._sequences[request_id] = _SequenceBlocks(by_lane, num_published=hit.num_blocks)

    def reserve(self, request_id: str, num_tokens: int) -> bool:
        """Make blocks cover positions below `num_tokens` in every group, or change nothing and return False."""
        end = -(-num_tokens // self.block_size)
        missing = []
        for lane, blocks in zip(self._lanes, self._sequences[request_id].by_lane, strict=True):
            count = end - blocks.first - len(blocks.ids)
            if count > 0:
                if count > lane.pool.num_available:
                    return False
                missing.append((lane.pool, blocks.ids, count))
        for pool, ids, count in missing:
            ids += pool.allocate(count)
        return True

    def advance(
        self,
        request_id: str,
        num_computed_tokens: int,
        block_hashes: Sequence[bytes],
        token_ids: Sequence[int] = (),
        draft_rows_from: int | None = None,
    ) -> None:
        """After a step: publish the blocks that became complete, free those no longer needed.

        token_ids        see `start`
        draft_rows_from  draft groups hold rows from this position on; None: not at all
        """
        sequence = self._sequences[request_id]
        num_complete = num_computed_tokens // self.block_size
        if self.enable_prefix_caching and num_complete > sequence.num_published:
            self._publish(sequence, num_complete, block_hashes, token_ids, draft_rows_from)
        for place, pool, window in self._windowed:
            blocks = sequence.by_lane[place]
            keep_from = (num_computed_tokens - window) // self.block_size  # CacheGroup.first_needed_block
            if keep_from > blocks.first and blocks.ids:
                num_dead = min(keep_from - blocks.first, len(blocks.ids))
                pool.release(blocks.ids[:num_dead])
                del blocks.ids[:num_dead]
                blocks.first += num_dead

    def _publish(
        self,
        sequence: _SequenceBlocks,
        num_complete: int,
        block_hashes: Sequence[bytes],
        token_ids: Sequence[int],
        draft_rows_from: int | None,
    ) -> None:
        for lane, blocks in zip(self._lanes, sequence.by_lane, strict=True):
            if not lane.is_kept:
                continue
            group, first = lane.group, sequence.num_published
            if group.kind is GroupKind.DRAFT:
                first = num_complete if draft_rows_from is None else max(first, -(-draft_rows_from // self.block_size))
            first, end = max(first, blocks.first), min(num_complete, blocks.end)
            if first >= end:
                continue
            if lane.is_plain:
                ids = blocks.ids[first - blocks.first : end - blocks.first]
                lane.pool.publish_all(ids, block_hashes[first:end])
                self._write_down(lane, block_hashes, first, end)
                continue
            for index in range(first, end):
                key = self._key(group, index, block_hashes, token_ids)
                if key is not None and self._is_worth_keeping(group, index):
                    lane.pool.publish(blocks.ids[index - blocks.first], key)
                    self._write_down(lane, block_hashes, index, index + 1)
        sequence.num_published = num_complete

    def _write_down(self, lane: _Lane, block_hashes: Sequence[bytes], first: int, end: int) -> None:
        if self._log is None:
            return
        parent = block_hashes[first - 1] if first else None
        for name in lane.names:
            if self._log.tells_of(name):
                self._log.stored(name, block_hashes[first:end], parent)

    def _is_worth_keeping(self, group: CacheGroup, index: int) -> bool:
        """Will a boundary that window states are kept for need this block?"""
        if group.window_tokens is None:
            return True
        if self.retention_interval is None:
            return False
        boundary = -(-(index + 1) // self.retention_interval) * self.retention_interval
        return index in self._needed_at(group, boundary)

    def release(self, request_id: str) -> None:
        """Let go of everything; published blocks stay cached, the tail of the sequence is evicted first."""
        for lane, blocks in zip(self._lanes, self._sequences.pop(request_id).by_lane, strict=True):
            lane.pool.release(reversed(blocks.ids))

    # -- views --

    @property
    def has_windows(self) -> bool:
        """Do blocks leave a sequence's tables while it runs?"""
        return any(group.window_tokens is not None for group in self.groups)

    @property
    def num_blocks(self) -> dict[str, int]:
        return {name: pool.num_blocks for name, pool in self.pools.items()}

    @property
    def capacity_tokens(self) -> int | None:
        """Longest sequence that fits; None: no group grows with the sequence."""
        growing = [self.pools[g.name].num_blocks for g in self.groups if g.window_tokens is None]
        return min(growing) * self.block_size if growing else None

    def block_tables(self, request_id: str) -> dict[str, BlockTable]:
        tables = [BlockTable(blocks.first, tuple(blocks.ids)) for blocks in self._sequences[request_id].by_lane]
        return {group.name: tables[self._place_of[group.name]] for group in self.groups}

    @property
    def usage(self) -> float:
        """Share of the cache bytes that running sequences hold, 0..1."""
        active = sum([lane.bytes_per_block * lane.pool.num_active for lane in self._lanes])
        return active / self._total_bytes

    def clear_cache(self) -> None:
        for lane in self._lanes:
            told, lane.pool.on_removed = lane.pool.on_removed, None  # told at once below
            lane.pool.clear_cache()
            lane.pool.on_removed = told
        if self._log is not None:
            self._log.cleared()

    def check_integrity(self) -> None:
        """Assert that pools are consistent and that references equal what the sequences hold."""
        for place, lane in enumerate(self._lanes):
            lane.pool.check_integrity()
            held = {block_id for s in self._sequences.values() for block_id in s.by_lane[place].ids}
            assert len(held) == lane.pool.num_active, f"{lane.names}: {lane.pool.num_active} active, {len(held)} held"
            for name in lane.names:
                if self._log is not None and self._log.tells_of(name):
                    is_right = self._log.held(name) == lane.pool.published()
                    assert is_right, f"group {name}: the log of its blocks is wrong"


def _together(groups: Sequence[CacheGroup], num_blocks: dict[str, int]) -> list[list[CacheGroup]]:
    """Groups by lane. Where a sequence keeps all its blocks and pools are of one size, the same blocks are held,
    found and evicted in each: they are counted once."""
    lanes: dict[tuple[str, int], list[CacheGroup]] = {}
    for group in groups:
        is_alone = group.window_tokens is not None or group.lookahead_tokens or not group.is_required
        is_alone = is_alone or group.kind is GroupKind.DRAFT
        lanes.setdefault((group.name if is_alone else "", num_blocks[group.name]), []).append(group)
    return list(lanes.values())


def _write_removed(log: KVLog, names: Sequence[str], block_hashes: Sequence[bytes]) -> None:
    for name in names:
        if log.tells_of(name):
            for block_hash in block_hashes:
                log.removed(name, block_hash)


def _rebuild_blocks(groups: Sequence[CacheGroup], block_size: int) -> int:
    """Blocks to compute again before a hit when no window states are kept."""
    if all(group.window_tokens is not None for group in groups):
        raise ConfigError(
            "window_retention 'recompute' needs a cache group without a window: choose 'all' or 'periodic'"
        )
    tokens = 0
    for group in groups:
        if group.window_tokens and group.is_required:
            if group.rebuild_tokens is None:
                raise ConfigError(
                    f"cache group {group.name} can not be rebuilt from the others: window_retention 'recompute' is not "
                    "possible for this model; choose 'all' or 'periodic'"
                )
            tokens = max(tokens, group.rebuild_tokens)
    return -(-tokens // block_size)
