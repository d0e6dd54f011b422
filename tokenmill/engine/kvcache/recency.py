"""Blocks in the order in which they were let go: a ring through two arrays, eight bytes per block.

Not responsible for: what a block holds, and when one goes (pool.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

_ABSENT = -1


class Recency:
    """Oldest first. Block b is entry b + 1; entry 0 is where the ring begins and ends."""

    def __init__(self) -> None:
        self._next = array("i", [0])
        self._previous = array("i", [0])

    def grow(self, num_blocks: int) -> None:
        """So many more blocks there are; none of them is in the order."""
        absent = array("i", [_ABSENT]) * num_blocks
        self._next += absent
        self._previous += absent

    def __contains__(self, block_id: int) -> bool:
        return self._next[block_id + 1] != _ABSENT

    def __iter__(self) -> Iterator[int]:
        at = self._next[0]
        while at:
            yield at - 1
            at = self._next[at]

    def extend(self, block_ids: Iterable[int]) -> None:
        """These are the newest now, the last of them the very newest; none was here."""
        following, preceding = self._next, self._previous
        last = preceding[0]
        for block_id in block_ids:
            at = block_id + 1
            following[last] = at
            preceding[at] = last
            last = at
        following[last] = 0
        preceding[0] = last

    def remove(self, block_id: int) -> None:
        """It must be here."""
        at = block_id + 1
        before, after = self._previous[at], self._next[at]
        assert after != _ABSENT, f"block {block_id} is not in the order"
        self._next[before], self._previous[after] = after, before
        self._next[at] = self._previous[at] = _ABSENT

    def pop_oldest(self) -> int:
        block_id = self._next[0] - 1
        assert block_id >= 0, "no block is left"
        self.remove(block_id)
        return block_id

    def clear(self) -> None:
        for block_id in list(self):
            self.remove(block_id)
