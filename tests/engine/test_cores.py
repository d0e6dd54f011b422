"""Workers that share a machine: no two on one core, no more threads than cores."""

import pytest

from tokenmill.engine.load import share_of_cores, thread_count


@pytest.mark.parametrize(("num_cores", "num_workers"), [(2, 2), (8, 3), (5, 2), (4, 4), (16, 1)])
def test_every_core_belongs_to_one_worker(num_cores, num_workers):
    cores = list(range(10, 10 + num_cores))
    shares = [share_of_cores(cores, index, num_workers) for index in range(num_workers)]
    assert [core for share in shares for core in share] == cores
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_two_workers_on_two_cores_have_a_thread_each():
    assert thread_count(None, num_cores=2, num_workers=2) == 1
