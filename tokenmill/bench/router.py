"""`bench router`: CPU time of a routing decision over many workers, of taking in their events, and bytes per block.

Not responsible for: how good the decisions are (the twin, live runs).
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.bench.environment import describe_environment
from tokenmill.core.errors import ConfigError
from tokenmill.core.kv_events import BlocksRemoved, BlocksStored, IndexedGroup, KVEvents, KVFormat, KVSnapshot
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, SamplingParams
from tokenmill.core.wire import Hello, WorkerStats, decode_to_frontend, encode
from tokenmill.operations.load_order import LoadOrder
from tokenmill.operations.members import FleetSnapshot, MemberState, MemberView
from tokenmill.operations.router.registry import load_policy
from tokenmill.operations.router.watch import RoutingWatch

#: Workers that hold the first half of a prompt.
_SHARERS = 20
_EVENT_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class RouterBench:
    """num_blocks: distinct blocks in the index, in prompts of `prompt_blocks`; half of each prompt is held by 20."""

    num_workers: int = 1000
    num_blocks: int = 1_000_000
    prompt_blocks: int = 1000
    num_queries: int = 400
    policy: str = "cost_aware"
    seed: int = 0

    def check(self) -> None:
        if self.num_blocks < self.prompt_blocks:
            raise ConfigError(f"--num-blocks {self.num_blocks} is less than one prompt ({self.prompt_blocks} blocks)")


def run_router_bench(bench: RouterBench) -> dict[str, Any]:
    bench.check()
    fleet = _Fleet(bench)
    tracemalloc.start()
    fleet.fill()
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    num_indexed = len(fleet.index)
    return {
        "bench": "router",
        "settings": {name: getattr(bench, name) for name in bench.__dataclass_fields__},
        "environment": describe_environment(),
        "num_indexed_blocks": num_indexed,
        "bytes_per_block": num_bytes / num_indexed,
        **_measure_decisions(fleet, bench),
        **_measure_events(fleet, bench),
    }


def _measure_decisions(fleet: _Fleet, bench: RouterBench) -> dict[str, Any]:
    """Look-up and policy, hashes given; half the prompts are held by somebody whole, half up to somewhere."""
    policy, rng = load_policy(bench.policy, bench.seed), random.Random(bench.seed)
    seconds, lookups, num_hits = [], [], 0
    for case in range(bench.num_queries):
        prompt = fleet.prompts[rng.randrange(len(fleet.prompts))]
        if case % 2:
            held = rng.randrange(len(prompt))
            prompt = prompt[:held] + _hashes(rng, len(prompt) - held)
        request = _request(case, prompt)
        snapshot = fleet.snapshot(case)
        began_s = time.thread_time()
        placement = policy.choose(request, snapshot)
        seconds.append(time.thread_time() - began_s)
        began_s = time.thread_time()
        fleet.index.runs(prompt)
        lookups.append(time.thread_time() - began_s)
        num_hits += bool(placement.num_cached_tokens)
    return {
        "decision_us_p50": statistics.median(seconds) * 1e6,
        "decision_us_p90": statistics.quantiles(seconds, n=10)[-1] * 1e6,
        "lookup_us_p50": statistics.median(lookups) * 1e6,
        "share_with_hit": num_hits / bench.num_queries,
    }


def _measure_events(fleet: _Fleet, bench: RouterBench) -> dict[str, Any]:
    """From bytes on the wire into the index: a worker stores blocks, and evicts as many that it stored before."""
    rng = random.Random(bench.seed + 1)
    before: dict[str, list[bytes]] = {}
    payloads, num_changes = [], 0
    for _ in range(max(1, bench.num_blocks // 10 // _EVENT_BLOCKS)):
        worker_id = f"w{rng.randrange(bench.num_workers):05d}"
        hashes, removed = _hashes(rng, _EVENT_BLOCKS), before.get(worker_id, [])
        before[worker_id] = hashes
        payloads.append(fleet.stored(worker_id, hashes, removed))
        num_changes += len(hashes) + len(removed)
    began_s = time.thread_time()
    for payload in payloads:
        fleet.take(payload)
    cpu_s = time.thread_time() - began_s
    return {"events_blocks_per_cpu_s": num_changes / cpu_s, "num_event_blocks": num_changes}


class _Fleet:
    """Workers with some load, and what they hold."""

    def __init__(self, bench: RouterBench) -> None:
        self._rng = random.Random(bench.seed)
        self._num_workers = bench.num_workers
        self._watch = RoutingWatch(max_blocks=2 * bench.num_blocks + bench.prompt_blocks)
        self._numbers: dict[str, int] = {}
        self._order = LoadOrder()
        self._members = tuple(_member(at, self._rng) for at in range(bench.num_workers))
        for member in self._members:
            self._join(member)
            self._order.put(member)
        num_prompts = bench.num_blocks // bench.prompt_blocks
        self.prompts = [_hashes(self._rng, bench.prompt_blocks) for _ in range(num_prompts)]
        self.index = self._watch.of_model("m").index

    def _join(self, member: MemberView) -> None:
        self._watch.hello(Hello(worker_id=member.worker_id, incarnation=0, pid=0, started_s=0.0, card=_CARD))
        form = KVFormat(
            block_size=_CARD.block_size,
            weights_version=_CARD.weights_version,
            hash_algorithm=_CARD.hash_algorithm,
            tokenizer_digest=None,
            groups=(IndexedGroup("full"),),
        )
        self._watch.events(KVSnapshot(worker_id=member.worker_id, incarnation=0, number=0, format=form, hashes=([],)))

    def fill(self) -> None:
        """Each prompt is held by one worker whole, and its first half by twenty more."""
        for at, prompt in enumerate(self.prompts):
            self.take(self.stored(f"w{at % self._num_workers:05d}", prompt))
            for _ in range(_SHARERS):
                sharer = self._rng.randrange(self._num_workers)
                self.take(self.stored(f"w{sharer:05d}", prompt[: len(prompt) // 2]))

    def stored(self, worker_id: str, hashes: Sequence[bytes], removed: Sequence[bytes] = ()) -> bytes:
        number = self._numbers[worker_id] = self._numbers.get(worker_id, 0) + 1
        changes = (BlocksRemoved(0, list(removed)), BlocksStored(0, list(hashes)))
        return encode(KVEvents(worker_id=worker_id, incarnation=0, number=number, changes=changes))

    def take(self, payload: bytes) -> None:
        message = decode_to_frontend(payload)
        assert isinstance(message, KVEvents)
        self._watch.events(message)

    def snapshot(self, num_placed: int) -> FleetSnapshot:
        return FleetSnapshot("m", num_placed, self._members, self._order, self._watch.of_model("m"))


def _hashes(rng: random.Random, count: int) -> list[bytes]:
    return [rng.randbytes(16) for _ in range(count)]


def _request(case: int, hashes: list[bytes]) -> Request:
    return Request(
        request_id=f"r{case}",
        model="m",
        prompt_token_ids=[0] * (len(hashes) * _CARD.block_size),
        sampling=SamplingParams(max_tokens=256),
        block_hashes=[bytes(bytearray(h)) for h in hashes],  # objects of their own, as they come off the wire
    )


_CARD = ModelCard(
    name="m",
    architecture="modelled",
    max_model_len=1 << 20,
    kv_capacity_tokens=1 << 20,
    max_num_seqs=64,
    vocab_size=1 << 16,
    block_size=16,
    weights_version="0",
)


def _member(at: int, rng: random.Random) -> MemberView:
    load = rng.randint(0, 32)
    return MemberView(
        worker_id=f"w{at:05d}",
        model="m",
        incarnation=0,
        state=MemberState.READY,
        since_s=0.0,
        last_seen_s=0.0,
        progress_s=0.0,
        card=_CARD,
        stats=WorkerStats(num_running=load, kv_usage=rng.random()),
        num_in_flight=load,
        num_pending_tokens=rng.randint(0, 8192),
    )
