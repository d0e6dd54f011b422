"""The physical blocks of one or more cache groups: free, active (referenced), or cached (unreferenced, content known).

Only writer of block state. Not responsible for which sequence uses which block (manager.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from tokenmill.engine.kvcache.recency import Recency

#: Pools count alike, and a fleet in one process has hundreds: equal ids are one object.
_IDS: list[int] = []
_ONE = array("i", [1])


class BlockPool:
    """Reference-counted blocks with a content index and least-recently-used eviction.

    A block's content may be published under a hash once it is complete; a published block whose last reference
    goes stays findable (cached) until its space is wanted.

    num_available  blocks that `allocate` can give: free ones, then cached ones
    on_removed     told of the hashes under which nothing is found any more; None: nobody wants to know
    """

    def __init__(self, name: str, num_blocks: int) -> None:
        assert num_blocks > 0, f"pool {name} has no blocks"
        self.name = name
        self.num_blocks = self.num_available = num_blocks
        # A pool may have millions of blocks: those that were never used (from len(_num_refs) on) are not written down.
        self._free: list[int] = []
        self._num_refs = array("i")
        self._hash_of: list[bytes | None] = []
        self._block_of: dict[bytes, int] = {}
        self._cached = Recency()
        self.on_removed: Callable[[Sequence[bytes]], None] | None = None

    @property
    def num_active(self) -> int:
        return self.num_blocks - self.num_available

    def find(self, block_hash: bytes) -> int | None:
        """The block published under `block_hash`, active or cached."""
        return self._block_of.get(block_hash)

    def is_cached(self, block_id: int) -> bool:
        """True when the block would be lost to `num_available` by acquiring it."""
        return block_id in self._cached

    def allocate(self, num_blocks: int) -> list[int]:
        """Blocks with one reference each and no published content; the caller checked `num_available`."""
        assert num_blocks <= self.num_available, f"pool {self.name}: {num_blocks} > {self.num_available}"
        self.num_available -= num_blocks
        free = self._free
        if free and num_blocks == 1:
            block_id = free.pop()
            self._num_refs[block_id] = 1
            return [block_id]
        block_ids = free[: -num_blocks - 1 : -1]
        if block_ids:
            del free[-len(block_ids) :]
            for block_id in block_ids:
                self._num_refs[block_id] = 1
        if len(block_ids) < num_blocks:
            block_ids += self._first_used(min(num_blocks - len(block_ids), self.num_blocks - len(self._num_refs)))
        if len(block_ids) < num_blocks:
            block_ids += self._evict(num_blocks - len(block_ids))
        return block_ids

    def _first_used(self, num_blocks: int) -> list[int]:
        start = len(self._num_refs)
        end = start + num_blocks
        self._num_refs += _ONE * num_blocks
        self._hash_of += [None] * num_blocks
        self._cached.grow(num_blocks)
        if len(_IDS) < end:
            _IDS.extend(range(len(_IDS), end))
        return _IDS[start:end]

    def _evict(self, num_blocks: int) -> list[int]:
        block_ids = [self._cached.pop_oldest() for _ in range(num_blocks)]
        self._unpublish(block_ids)
        for block_id in block_ids:
            self._num_refs[block_id] = 1
        return block_ids

    def acquire(self, block_id: int) -> None:
        """One more reference to a published block."""
        assert self._hash_of[block_id] is not None, f"pool {self.name}: block {block_id} is not published"
        if self._num_refs[block_id] == 0:
            self._cached.remove(block_id)
            self.num_available -= 1
        self._num_refs[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference each, in the order in which the blocks should later be evicted."""
        num_refs, hash_of, free = self._num_refs, self._hash_of, self._free
        num_free, cached = len(free), []
        for block_id in block_ids:
            refs = num_refs[block_id] - 1
            assert refs >= 0, f"pool {self.name}: block {block_id} released twice"
            num_refs[block_id] = refs
            if refs == 0:
                if hash_of[block_id] is None:
                    free.append(block_id)
                else:
                    cached.append(block_id)
        if cached:
            self._cached.extend(cached)
        self.num_available += len(free) - num_free + len(cached)

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Make the complete content of an active block findable. The first block of equal content wins."""
        self.publish_all((block_id,), (block_hash,))

    def publish_all(self, block_ids: Iterable[int], block_hashes: Iterable[bytes]) -> None:
        """The same of several."""
        num_refs, hash_of, block_of = self._num_refs, self._hash_of, self._block_of
        for block_id, block_hash in zip(block_ids, block_hashes, strict=True):
            assert num_refs[block_id] > 0, f"pool {self.name}: publishing unreferenced block {block_id}"
            if hash_of[block_id] is None and block_hash not in block_of:
                hash_of[block_id] = block_hash
                block_of[block_hash] = block_id

    def _unpublish(self, block_ids: Iterable[int]) -> None:
        removed = []
        for block_id in block_ids:
            block_hash = self._hash_of[block_id]
            assert block_hash is not None
            del self._block_of[block_hash]
            self._hash_of[block_id] = None
            removed.append(block_hash)
        if self.on_removed is not None and removed:
            self.on_removed(removed)

    def clear_cache(self) -> None:
        """Forget all published content; active blocks stay with their sequences."""
        self._unpublish(list(self._block_of.values()))
        self._free.extend(self._cached)
        self._cached.clear()

    def published(self) -> set[bytes]:
        return set(self._block_of)

    def check_integrity(self) -> None:
        """Assert that every block is in exactly one state and the content index is a bijection."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), f"pool {self.name}: a block is free twice"
        assert not free & cached, f"pool {self.name}: {free & cached} both free and cached"
        num_unused = self.num_blocks - len(self._num_refs)
        assert self.num_available == len(free) + len(cached) + num_unused, f"pool {self.name}: {self.num_available}"
        for block_id, num_refs in enumerate(self._num_refs):
            assert (num_refs == 0) == (block_id in free or block_id in cached), f"{self.name}: {block_id} {num_refs}"
            block_hash = self._hash_of[block_id]
            assert block_hash is None or self._block_of[block_hash] == block_id
            assert block_id not in cached or block_hash is not None
            assert block_id not in free or block_hash is None
        assert len(self._block_of) == sum(h is not None for h in self._hash_of)
