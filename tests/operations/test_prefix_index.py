"""The prefix index: against a naive model in any order of events, and each way in which its knowledge can be wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.operations.ops_fakes import make_card
from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    IndexedGroup,
    KVChange,
    KVEvents,
    KVFormat,
    KVSnapshot,
)
from tokenmill.operations.router.index import Awareness, PrefixIndex
from tokenmill.operations.router.predictions import Predictions, _positions

FULL = IndexedGroup("full")


def make_format(*groups: IndexedGroup, **changes: object) -> KVFormat:
    fields: dict[str, object] = {
        "block_size": 16,
        "weights_version": "0",
        "hash_algorithm": "xxh3",
        "tokenizer_digest": "t",
        "groups": groups or (FULL,),
    }
    return KVFormat(**(fields | changes))


def chain(*blocks: int) -> list[bytes]:
    """Hashes of a prompt: each names all blocks before it."""
    return [bytes(blocks[: i + 1]) for i in range(len(blocks))]


def join(index: PrefixIndex, worker_id: str, *hashes: bytes, number: int = 0, fmt: KVFormat | None = None) -> None:
    index.join(worker_id, 0)
    assert worker_id in index.wanted(0.0)
    load(index, worker_id, *hashes, number=number, fmt=fmt)


def load(index: PrefixIndex, worker_id: str, *hashes: bytes, number: int = 0, fmt: KVFormat | None = None) -> None:
    fmt = fmt or make_format()
    index.load(
        KVSnapshot(
            worker_id=worker_id,
            incarnation=0,
            number=number,
            format=fmt,
            hashes=(list(hashes), *([] for _ in fmt.groups[1:])),
        )
    )


def tell(index: PrefixIndex, worker_id: str, number: int, *changes: KVChange, incarnation: int = 0) -> None:
    index.apply(KVEvents(worker_id=worker_id, incarnation=incarnation, number=number, changes=changes))


def served(index: PrefixIndex, hashes: list[bytes]) -> dict[str, int]:
    """Blocks by worker, those without any left out."""
    lengths: dict[str, int] = {}
    for length, workers in index.runs(hashes):
        for position in range(workers.bit_length()):
            if workers >> position & 1:
                name = index.name_at(position)
                assert name is not None and name not in lengths
                lengths[name] = length
    return lengths


# -- against a naive model --


@dataclass
class Naive:
    """One worker: what it holds for real, what of it the index was told, and messages on their way."""

    held: list[set[bytes]]
    known: list[set[bytes]]
    number: int = 0
    taken: int = 0
    is_aware: bool = True
    predicted: dict[str, list[bytes]] = field(default_factory=dict)


class IndexMachine(RuleBasedStateMachine):
    """A full group, a second full one, and a window group that needs the last two blocks (as DeepSeek V4 has)."""

    GROUPS = (FULL, IndexedGroup("indexer"), IndexedGroup("window", 2))
    PROMPTS = tuple(chain(*blocks) for blocks in ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7, 8), (9, 9), (1, 2)))
    HASHES = tuple(sorted({h for prompt in PROMPTS for h in prompt}))

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.workers: dict[str, Naive] = {}
        self.num_requests = 0

    names = st.sampled_from(["a", "b", "c", "d"])
    blocks = st.lists(st.sampled_from(HASHES), max_size=6)

    @rule(name=names, blocks=blocks)
    def join(self, name: str, blocks: list[bytes]) -> None:
        held = [whole(blocks), whole(blocks[1:]), set(blocks)]
        self.workers[name] = Naive(held, [set(s) for s in held])
        self.index.join(name, 0)
        self._snapshot(name)

    def _snapshot(self, name: str) -> None:
        worker = self.workers[name]
        self.index.load(
            KVSnapshot(
                worker_id=name,
                incarnation=0,
                number=worker.number,
                format=make_format(*self.GROUPS),
                hashes=tuple(sorted(s) for s in worker.held),
            )
        )
        worker.known = [set(s) for s in worker.held]
        worker.taken, worker.is_aware = worker.number, True
        worker.predicted.clear()  # its bit is another one

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), is_lost=st.booleans(), copies=st.integers(1, 2))
    def change(self, data: st.DataObject, is_lost: bool, copies: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers[name]
        kind = data.draw(st.sampled_from(["stored", "removed", "prompt", "cleared"]))
        group, blocks = data.draw(st.integers(0, 2)), data.draw(self.blocks)
        if kind == "prompt":
            prompt = data.draw(st.sampled_from(self.PROMPTS))
            changes: list[KVChange] = [BlocksStored(g, prompt) for g in range(3)]
        elif kind == "cleared":
            changes = [CacheCleared()]
        else:
            changes = [(BlocksStored if kind == "stored" else BlocksRemoved)(group, blocks)]
            if group < 2:  # groups without a window: whole prefixes only
                after = [set(s) for s in worker.held]
                apply(after, changes)
                now, then = worker.held[group], whole(after[group])
                changes = [BlocksRemoved(group, sorted(now - then)), BlocksStored(group, sorted(then - now))]
        apply(worker.held, changes)
        worker.number += 1
        if is_lost:
            return
        for _ in range(copies):
            tell(self.index, name, worker.number, *changes)
        if not worker.is_aware:
            return
        if worker.number == worker.taken + 1:
            apply(worker.known, changes)
            worker.taken += 1
            if kind == "cleared":
                worker.predicted.clear()
        else:
            worker.is_aware = False

    @rule()
    def repair(self) -> None:
        for name in self.index.wanted(0.0):
            assert not self.workers[name].is_aware
            self._snapshot(name)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), prompt=st.sampled_from(PROMPTS))
    def predict(self, data: st.DataObject, prompt: list[bytes]) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        self.num_requests += 1
        self.index.predict(f"r{self.num_requests}", name, prompt)
        self.workers[name].predicted[f"r{self.num_requests}"] = prompt

    @precondition(lambda self: any(w.predicted for w in self.workers.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        ids = sorted(r for w in self.workers.values() for r in w.predicted)
        request_id = data.draw(st.sampled_from(ids))
        self.index.predictions.settle(request_id)
        for worker in self.workers.values():
            worker.predicted.pop(request_id, None)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        del self.workers[name]
        self.index.leave(name)

    @rule(num_blocks=st.integers(1, 5))
    def sweep(self, num_blocks: int) -> None:
        self.index.sweep(num_blocks)

    @invariant()
    def agrees(self) -> None:
        self.index.check_integrity()
        for prompt in self.PROMPTS:
            expected = {name: naive_length(worker, prompt) for name, worker in self.workers.items()}
            assert served(self.index, prompt) == {name: n for name, n in expected.items() if n}
        assert set(self.index.lost()) == {name for name, worker in self.workers.items() if not worker.is_aware}

    def teardown(self) -> None:
        """Once everybody is gone and everything is swept, nothing is left of anybody."""
        for name in self.workers:
            self.index.leave(name)
        for _ in range(100):
            self.index.sweep(5)
        assert len(self.index) == 0 or not self.index._alive
        self.index.check_integrity()


def apply(groups: list[set[bytes]], changes: list[KVChange]) -> None:
    for change in changes:
        if isinstance(change, BlocksStored):
            groups[change.group] |= set(change.hashes)
        elif isinstance(change, BlocksRemoved):
            groups[change.group] -= set(change.hashes)
        else:
            for group in groups:
                group.clear()


def whole(blocks: Iterable[bytes]) -> set[bytes]:
    """Those whose prefix is there, too; a hash is the numbers of all blocks so far."""
    there = set(blocks)
    return {h for h in there if all(h[:n] in there for n in range(1, len(h)))}


def naive_length(worker: Naive, prompt: list[bytes]) -> int:
    def is_usable(n: int) -> bool:
        full, indexer, window = worker.known
        is_held = all(h in full and h in indexer for h in prompt[:n])
        return is_held and all(h in window for h in prompt[max(0, n - 2) : n])

    held = max(n for n in range(len(prompt) + 1) if is_usable(n))
    about = [shared(prompt, predicted) for predicted in worker.predicted.values()]
    return max([held, *about])


def shared(first: list[bytes], second: list[bytes]) -> int:
    both = min(len(first), len(second))
    return next((i for i in range(both) if first[i] != second[i]), both)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# -- single properties --


def test_duplicate_and_stale_messages_change_nothing() -> None:
    index, prompt = PrefixIndex(), chain(1, 2)
    join(index, "a", number=5)
    tell(index, "a", 6, BlocksStored(0, prompt))
    tell(index, "a", 6, BlocksRemoved(0, prompt))
    tell(index, "a", 2, CacheCleared())
    tell(index, "a", 7, BlocksRemoved(0, prompt), incarnation=1)
    assert served(index, prompt) == {"a": 2} and not index.lost()
    assert index.counts["stale"] == 2 and index.counts["unknown"] == 1


def test_a_gap_is_seen_and_repaired_by_a_snapshot() -> None:
    """Out of order is a gap too: what comes late is in the snapshot."""
    index, prompt = PrefixIndex(), chain(1, 2, 3)
    join(index, "a", prompt[0])
    tell(index, "a", 2, BlocksStored(0, [prompt[2]]))
    assert "1 to 1 never came" in index.lost()["a"] and index.state_of("a") is Awareness.WAITING
    assert index.wanted(10.0) == ["a"] and index.wanted(10.5) == [] and index.wanted(11.0) == ["a"]
    tell(index, "a", 1, BlocksStored(0, [prompt[1]]))
    assert served(index, prompt) == {"a": 1}
    load(index, "a", *prompt, number=2)
    load(index, "a", number=2)  # the answer to the second question: too late
    assert served(index, prompt) == {"a": 3} and not index.lost()
    tell(index, "a", 3, BlocksRemoved(0, [prompt[2]]))
    assert served(index, prompt) == {"a": 2}
    index.check_integrity()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 32}, "block_size 32 instead of 16"),
        ({"tokenizer_digest": "u"}, "tokenizer_digest 'u' instead of 't'"),
        ({"weights_version": "1"}, "weights_version '1' instead of '0'"),
        ({"groups": (FULL, IndexedGroup("window", 1))}, "groups"),
    ],
)
def test_another_format_is_refused_loudly(
    changes: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Dynamo's events of another block size were dropped in silence (operations C-3)."""
    index, prompt = PrefixIndex(), chain(1, 2)
    join(index, "a", *prompt)
    other = make_format(**({"groups": (FULL,)} | changes))  # type: ignore[arg-type]
    join(index, "b", *prompt, fmt=other)
    assert words in index.lost()["b"] and words in caplog.text
    assert served(index, prompt) == {"a": 2} and index.counts["refused"] == 1
    tell(index, "b", 1, BlocksStored(0, prompt))
    assert served(index, prompt) == {"a": 2} and index.counts["ignored"] == 1
    index.leave("a")  # now the others may say what the format is
    assert index.wanted(5.0) == ["b"]
    load(index, "b", *prompt, fmt=other)
    assert served(index, prompt) == ({"b": 2} if len(other.groups) == 1 else {}) and not index.lost()


def test_events_of_an_unknown_group_are_refused() -> None:
    index = PrefixIndex()
    join(index, "a", *chain(1))
    tell(index, "a", 1, BlocksStored(7, chain(1, 2)))
    assert "cache group" in index.lost()["a"] and served(index, chain(1)) == {}


def test_a_flood_stays_within_the_limit_and_is_visible() -> None:
    """Routers whose index grew for ever (operations C-2): ours leaves out, says so, and recovers."""
    index, rng = PrefixIndex(max_blocks=100), random.Random(0)
    join(index, "a")
    join(index, "b", *chain(1, 2))
    for number in range(1, 101):
        tell(index, "a", number, BlocksStored(0, [rng.randbytes(16) for _ in range(50)]))
    assert len(index) == 100 and index.counts["left_out"] == 100 * 50 - 98
    assert index.lost().keys() == {"a"} and "full (100 blocks)" in index.lost()["a"]
    assert index.wanted(100.0) == []  # there is no room yet
    tell(index, "a", 101, CacheCleared())
    index.sweep()
    assert index.wanted(100.0) == ["a"]
    load(index, "a", *chain(5), number=101)
    assert not index.lost() and served(index, chain(5)) == {"a": 1} and served(index, chain(1, 2)) == {"b": 2}
    index.check_integrity()


def test_a_frontend_restart_rebuilds_the_index_from_snapshots() -> None:
    prompt = chain(1, 2, 3)
    before, after = PrefixIndex(), PrefixIndex()
    join(before, "a", prompt[0])
    tell(before, "a", 1, BlocksStored(0, prompt[1:]))
    tell(after, "a", 1, BlocksStored(0, prompt[1:]))
    assert after.counts["unknown"] == 1
    join(after, "a", *prompt, number=1)
    assert served(before, prompt) == served(after, prompt) == {"a": 3}


def test_a_hit_that_rebuilds_its_windows_ends_earlier() -> None:
    """Window groups of which nothing is kept: the last blocks of the hit are computed again."""
    groups = [
        CacheGroup("full", GroupKind.FULL, 1),
        CacheGroup("window", GroupKind.SLIDING_WINDOW, 1, window_tokens=20, rebuild_tokens=20),
        CacheGroup("draft", GroupKind.DRAFT, 1, is_required=False),
    ]
    kept, rebuilt = KVFormat.of(make_card(), groups), KVFormat.of(make_card(), groups, rebuild_blocks=2)
    assert kept.groups == (IndexedGroup("full"), IndexedGroup("window", 2))
    assert rebuilt.groups == (IndexedGroup("full"),)
    index, prompt = PrefixIndex(), chain(1, 2, 3, 4, 5)
    join(index, "a", *prompt, fmt=rebuilt)
    assert served(index, prompt) == {"a": 3} and served(index, prompt[:2]) == {}


def test_predictions_are_bounded_and_counted() -> None:
    predictions = Predictions(limit=2)
    prompt = [bytes([i]) for i in range(40)]
    predictions.add("r1", 1, prompt)
    predictions.add("r2", 1, prompt[:20])
    assert predictions.runs(prompt, 1) == [(40, 1)]
    assert predictions.runs([*prompt[:30], b"x" * 2], 1) == [(24, 1)]  # told apart to eight blocks
    predictions.settle("r1")
    assert predictions.runs(prompt, 1) == [(16, 1)]
    predictions.add("r3", 2, prompt)
    predictions.add("r4", 2, prompt)
    assert len(predictions) == 2 and predictions.runs(prompt, 1) == []
    predictions.settle("r3")
    predictions.settle("r4")
    assert not predictions.workers_of and not predictions._counts
    assert _positions(3) == [0, 1, 2] and _positions(25) == [*range(8), 15, 23, 24] and _positions(0) == []
