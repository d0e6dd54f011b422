"""Where a proposer's own cache rows of each sequence begin and end. Pure, torch-free.

Rows need not begin at 0: a prefix hit may miss the draft group, and rows that no later step needs are not made.
They begin at a block boundary, so that a block is either whole or not there at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.step import BlockTable


@dataclass(slots=True)
class Track:
    """Rows exist for positions begin .. end - 1."""

    begin: int
    end: int
    has_lapsed: bool = False


class Tracks:
    """
    group       cache group with the rows
    block_size  source tokens per block
    window      tokens that a row attends to, itself included; None: all of them
    """

    def __init__(self, group: str, block_size: int, window: int | None = None) -> None:
        self._group, self._block_size, self._window = group, block_size, window
        self._by_id: dict[str, Track] = {}

    def get(self, request_id: str) -> Track | None:
        return self._by_id.get(request_id)

    def extend(self, request_id: str, table: BlockTable, start: int, end: int, num_known_tokens: int) -> range:
        """The target has computed positions start .. end - 1 of num_known_tokens: which are to be added now?

        Rows further back than a window from the last known token are left out: nothing that is drafted sees them.
        """
        present = table.first_block * self._block_size
        track = self._by_id.get(request_id)
        if track is not None and track.has_lapsed:  # blocks hold rows only from the next boundary on
            track = self._by_id[request_id] = Track(-(-start // self._block_size) * self._block_size, start)
        elif track is None or track.end != start:  # new, or starting over: what its blocks hold came with a prefix hit
            track = self._by_id[request_id] = Track(min(present, start), start)
        track.begin = max(track.begin, present)
        if track.begin >= start and self._window is not None:
            behind = max(0, num_known_tokens - self._window)
            track.begin = max(track.begin, behind // self._block_size * self._block_size)
        track.end = end
        return range(min(max(start, track.begin), end), end)

    def clipped(self, request_id: str, table: BlockTable) -> BlockTable:
        """The table without blocks that hold no rows."""
        track = self._by_id.get(request_id)
        skip = 0 if track is None else max(0, track.begin // self._block_size - table.first_block)
        return BlockTable(table.first_block + skip, table.block_ids[skip:])

    def lapse(self, request_id: str) -> None:
        self._by_id[request_id] = Track(0, 0, has_lapsed=True)

    def rows_from(self, request_id: str) -> int | None:
        track = self._by_id.get(request_id)
        return None if track is None or track.has_lapsed else track.begin

    def forget(self, request_id: str) -> None:
        self._by_id.pop(request_id, None)
