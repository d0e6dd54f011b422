"""The few workers that are worth a look for one request, out of thousands: those with the longest prefixes, the least
loaded, and of large sets with equal prefixes a seeded sample. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import xxhash

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot, MemberView
from tokenmill.operations.router.hits import Run
from tokenmill.operations.router.knowledge import Knowledge

#: Of workers with equal prefixes, so many are looked at; and so many different lengths.
_SAMPLE = 6
_MAX_RUNS = 6
_WORKER_ID = attrgetter("worker_id")


@dataclass(frozen=True, slots=True)
class Candidate:
    """num_cached_tokens: of the prompt, what it holds or is about to; at least one token is always computed."""

    member: MemberView
    num_cached_tokens: int


def find_candidates(request: Request, snapshot: FleetSnapshot, knowledge: Knowledge, seed: int) -> list[Candidate]:
    """At least one; no worker twice."""
    draw = xxhash.xxh3_64_intdigest(request.request_id.encode(), seed)
    index, num_prompt = knowledge.index, len(request.prompt_token_ids)
    runs = index.runs(request.block_hashes)
    found: dict[str, Candidate] = {}
    for num_blocks, workers in runs[:_MAX_RUNS]:
        for position in _sample(workers, draw):
            name = index.name_at(position)
            member = None if name is None else _member(snapshot, name)
            if member is not None:
                block_size = member.card.block_size if member.card else 1
                num_cached = min(num_blocks * block_size, num_prompt - 1)
                found[member.worker_id] = Candidate(member, num_cached)
    for member in _least_loaded(snapshot, draw):
        if member.worker_id not in found:
            found[member.worker_id] = Candidate(
                member, _cached_on(index.bit_of(member.worker_id), runs, member, num_prompt)
            )
    return list(found.values())


def _cached_on(bit: int, runs: Sequence[Run], member: MemberView, num_prompt: int) -> int:
    block_size = member.card.block_size if member.card else 1
    num_blocks = next((n for n, workers in runs if workers & bit), 0)
    return min(num_blocks * block_size, num_prompt - 1)


def _sample(workers: int, draw: int) -> Iterator[int]:
    """Positions of all bits, or of some when there are many."""
    if workers.bit_count() <= _SAMPLE:
        while workers:
            low = workers & -workers
            yield low.bit_length() - 1
            workers ^= low
        return
    size = workers.bit_length()
    for turn in range(_SAMPLE):
        start = (draw >> turn * 10) % size
        above = workers >> start
        rest = above or workers
        yield (rest & -rest).bit_length() - 1 + (start if above else 0)


def _least_loaded(snapshot: FleetSnapshot, draw: int) -> Iterator[MemberView]:
    """Some of those tied for the least load, and some of the rest."""
    if len(snapshot.members) <= 2 * _SAMPLE:
        yield from snapshot.members
        return
    tied = snapshot.least_loaded()
    if len(tied) <= _SAMPLE:
        tied.sort(key=_WORKER_ID)
    for turn in range(min(_SAMPLE, len(tied))):
        yield tied[((draw >> turn * 10) + turn) % len(tied)]
    for turn in range(_SAMPLE):
        yield snapshot.members[(draw >> turn * 9) % len(snapshot.members)]


def _member(snapshot: FleetSnapshot, worker_id: str) -> MemberView | None:
    at = bisect_left(snapshot.members, worker_id, key=_WORKER_ID)
    if at < len(snapshot.members) and snapshot.members[at].worker_id == worker_id:
        return snapshot.members[at]
    return None


def break_tie(request: Request, worker_id: str, seed: int) -> int:
    """Depends on seed, request and worker only: equal workers share requests evenly."""
    return first_of_tie(request, seed)(worker_id)


def first_of_tie(request: Request, seed: int) -> Callable[[str], int]:
    """`break_tie` of one request, for the many workers that may be tied: the least is first."""
    tag, digest = f"{len(request.request_id)}:{request.request_id}", xxhash.xxh3_64_intdigest

    def place(worker_id: str) -> int:
        return digest((tag + worker_id).encode(), seed)

    return place
