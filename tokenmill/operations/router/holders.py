"""Block hash -> the workers that hold the block, for one cache group: one dict, worker sets as the bits of an int.

Equal sets are one object, so that a shared prefix costs its hashes and no more, and a prompt's blocks can be told
apart by identity. Not responsible for: which bit is which worker, or what a hit is (index.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

#: Distinct sets that are kept apart as objects; beyond it sharing starts anew, which only costs memory.
_MAX_INTERNED = 65_536


class HolderTable:
    """
    workers_of  hash -> bits of its workers. Bits of workers that are gone may stay in it until they are swept
    """

    def __init__(self) -> None:
        self.workers_of: dict[bytes, int] = {}
        self._interned: dict[int, int] = {}
        self._to_sweep: Iterator[bytes] | None = None

    def __len__(self) -> int:
        return len(self.workers_of)

    def store(self, hashes: Sequence[bytes], bit: int, room: int) -> tuple[int, int]:
        """This worker holds these blocks. -> (blocks that were news of it, blocks left out for want of room)."""
        workers_of, intern = self.workers_of, self._intern
        bit = intern(bit)
        num_new = num_left_out = 0
        get = workers_of.get
        for block_hash in hashes:
            held = get(block_hash)
            if held is None:
                if room <= 0:
                    num_left_out += 1
                    continue
                room -= 1
                workers_of[block_hash] = bit
            elif held & bit:
                continue
            else:
                workers_of[block_hash] = intern(held | bit)
            num_new += 1
        return num_new, num_left_out

    def remove(self, hashes: Sequence[bytes], bit: int) -> int:
        """This worker holds them no longer. -> how many of them it was known to hold."""
        workers_of, intern = self.workers_of, self._intern
        num_removed = 0
        for block_hash in hashes:
            held = workers_of.get(block_hash, 0)
            if not held & bit:
                continue
            num_removed += 1
            if held == bit:
                del workers_of[block_hash]
            else:
                workers_of[block_hash] = intern(held ^ bit)
        return num_removed

    def begin_sweep(self) -> None:
        self._to_sweep = iter(list(self.workers_of))

    def sweep(self, retired: int, num_blocks: int) -> int:
        """Look at the next `num_blocks` blocks, forget these workers there. -> how many were looked at; fewer: done."""
        assert self._to_sweep is not None, "begin_sweep first"
        workers_of, keep = self.workers_of, ~retired
        for count, block_hash in enumerate(self._to_sweep):
            held = workers_of.get(block_hash, 0)
            if held & retired:
                left = held & keep
                if left:
                    workers_of[block_hash] = self._intern(left)
                else:
                    del workers_of[block_hash]
            if count + 1 == num_blocks:
                return num_blocks
        self._to_sweep = None
        return 0

    def _intern(self, workers: int) -> int:
        interned = self._interned
        if len(interned) >= _MAX_INTERNED:
            interned.clear()
        return interned.setdefault(workers, workers)
