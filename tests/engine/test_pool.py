"""BlockPool: random lives of blocks never double-book or lose one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenmill.engine.kvcache.pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool("full", 12)
        self.held: list[int] = []  # one entry per reference
        self.published: dict[bytes, int] = {}

    @rule(num=st.integers(1, 5))
    def allocate(self, num: int) -> None:
        if num <= self.pool.num_available:
            ids = self.pool.allocate(num)
            assert len(set(ids)) == num and not set(ids) & set(self.held)
            self.held += ids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        self.held.remove(block_id)
        self.pool.release([block_id])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), content=st.integers(0, 9))
    def publish(self, data: st.DataObject, content: int) -> None:
        self.pool.publish(data.draw(st.sampled_from(self.held)), bytes([content]))

    @rule(content=st.integers(0, 9))
    def acquire(self, content: int) -> None:
        block_id = self.pool.find(bytes([content]))
        if block_id is not None:
            self.pool.acquire(block_id)
            self.held.append(block_id)

    @rule()
    def clear(self) -> None:
        self.pool.clear_cache()
        assert all(self.pool.find(bytes([c])) is None for c in range(10))

    @invariant()
    def accounts(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_active == len(set(self.held))
        assert self.pool.num_available == 12 - len(set(self.held))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_least_recently_used_is_evicted_first():
    pool = BlockPool("full", 3)
    a, b, c = pool.allocate(3)
    for block_id, content in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.publish(block_id, content)
    pool.release([a, b, c])
    pool.acquire(a)
    pool.release([a])  # a was used last
    pool.allocate(2)
    assert pool.find(b"a") == a and pool.find(b"b") is None and pool.find(b"c") is None


def test_the_first_block_of_equal_content_wins():
    pool = BlockPool("full", 2)
    a, b = pool.allocate(2)
    pool.publish(a, b"x")
    pool.publish(b, b"x")
    assert pool.find(b"x") == a
    pool.release([b])
    assert pool.num_available == 1
    pool.check_integrity()


def test_releasing_twice_is_caught():
    pool = BlockPool("full", 1)
    ids = pool.allocate(1)
    pool.release(ids)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(ids)
