"""How long a prefix each worker could serve, out of the holders of a prompt's blocks. Pure functions.

A run (n, workers) says that exactly these workers can serve n blocks and no more; runs come longest first, and no
worker is in two of them. Sets of workers are the bits of an int.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Run = tuple[int, int]


def leading_runs(workers_of: Mapping[bytes, int], hashes: Sequence[bytes], workers: int, limit: int) -> list[Run]:
    """Of `workers`, those that hold the first n of the first `limit` blocks, for each n >= 1 at which one drops out.

    Workers tell only of whole prefixes (core/kv_events), so that nobody comes back behind the block at which it dropped
    out: doubling steps and bisection find those places in few look-ups, where each look-up is a cache miss.
    """
    end = min(limit, len(hashes))
    common = workers_of.get(hashes[0], 0) & workers if end else 0
    runs: list[Run] = []
    at = 0  # the common ones hold this block
    while common:
        last = workers_of.get(hashes[end - 1], 0) & common
        if last == common:
            runs.append((end, common))
            break
        at = _last_with(workers_of, hashes, common, at, end - 1)
        left = workers_of.get(hashes[at + 1], 0) & common
        runs.append((at + 1, common ^ left))
        common, at = left, at + 1
    runs.reverse()
    return runs


def _last_with(workers_of: Mapping[bytes, int], hashes: Sequence[bytes], common: int, low: int, high: int) -> int:
    """The last block that all of `common` hold; they hold `low` and not `high`."""
    step = 1
    while low + step < high and workers_of.get(hashes[low + step], 0) & common == common:
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        if workers_of.get(hashes[middle], 0) & common == common:
            low = middle
        else:
            high = middle
    return low


def intersect(first: Sequence[Run], second: Sequence[Run]) -> list[Run]:
    """Runs of workers that can serve n blocks of both."""
    lengths = sorted({n for n, _ in first} | {n for n, _ in second}, reverse=True)
    runs: list[Run] = []
    found = 0
    for length in lengths:
        able = _at_least(first, length) & _at_least(second, length) & ~found
        if able:
            runs.append((length, able))
            found |= able
    return runs


def longest(first: Sequence[Run], second: Sequence[Run]) -> list[Run]:
    """Runs of the longer of both, worker by worker."""
    if not second:
        return list(first)
    runs: list[Run] = []
    found = 0
    for length, workers in sorted([*first, *second], reverse=True):
        new = workers & ~found
        if not new:
            continue
        found |= new
        if runs and runs[-1][0] == length:
            new |= runs.pop()[1]
        runs.append((length, new))
    return runs


def _at_least(runs: Sequence[Run], length: int) -> int:
    able = 0
    for n, workers in runs:
        if n < length:
            break
        able |= workers
    return able


def shorten_to_windows(
    runs: Sequence[Run], tables: Sequence[tuple[Mapping[bytes, int], int]], hashes: Sequence[bytes]
) -> list[Run]:
    """The longest boundary within its run at which a worker also holds the last blocks of each window group.

    tables  (holders, window_blocks) of each such group
    """
    if not tables or not runs:
        return list(runs)
    everyone = _at_least(runs, 1)
    shortened: list[Run] = []
    found = 0
    for boundary, able in _boundaries(runs):
        wanted = able & ~found
        for workers_of, window in tables:
            for index in range(max(0, boundary - window), boundary):
                wanted &= workers_of.get(hashes[index], 0)
            if not wanted:
                break
        if wanted:
            shortened.append((boundary, wanted))
            found |= wanted
            if found == everyone:
                break
    return shortened


def _boundaries(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """(boundary, workers that hold all before it), from the longest down to 1."""
    able = 0
    for index, (length, workers) in enumerate(runs):
        able |= workers
        shorter = runs[index + 1][0] if index + 1 < len(runs) else 0
        for boundary in range(length, shorter, -1):
            yield boundary, able
