"""Caches of workers that tell nothing: assumed from what they were sent, as least-recently-used caches of their size.

Not responsible for: looking anything up (index.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class AssumedCaches:
    """`use` says what comes in and what goes out; the caller tells the index."""

    def __init__(self) -> None:
        self._blocks: dict[str, OrderedDict[bytes, None]] = {}

    def use(self, worker_id: str, hashes: Sequence[bytes], capacity: int) -> tuple[list[bytes], list[bytes]]:
        """A prompt with these blocks was sent there. -> (blocks that are new, blocks they displace)."""
        blocks = self._blocks.setdefault(worker_id, OrderedDict())
        new = []
        for block_hash in reversed(hashes):  # the end of a prompt goes first, as engines do it
            if block_hash in blocks:
                blocks.move_to_end(block_hash)
            else:
                blocks[block_hash] = None
                new.append(block_hash)
        gone = [blocks.popitem(last=False)[0] for _ in range(max(0, len(blocks) - capacity))]
        if gone:
            dropped = set(gone)
            new = [block_hash for block_hash in new if block_hash not in dropped]
        return new, gone

    def forget(self, worker_id: str) -> None:
        self._blocks.pop(worker_id, None)
