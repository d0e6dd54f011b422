"""How many threads a worker may ask for: more than the cores is allowed, a number that never starts is refused."""

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.load import load_engine, thread_count


def test_the_default_is_this_workers_share_of_the_cores():
    assert thread_count(None, num_cores=8, num_workers=3) == 2
    assert thread_count(None, num_cores=1, num_workers=4) == 1


def test_a_given_number_is_kept():
    assert thread_count(3, num_cores=2, num_workers=2) == 3
    assert thread_count(16, num_cores=1, num_workers=1) == 16
    assert thread_count(256, num_cores=64, num_workers=1) == 256


@pytest.mark.parametrize(("asked", "num_cores", "most"), [(17, 2, 16), (10_000, 2, 16), (257, 64, 256)])
def test_threads_that_would_only_fight_for_cores_are_refused(asked, num_cores, most):
    with pytest.raises(ConfigError, match=rf"num_threads={asked} .*{num_cores} cores.* at most {most}$"):
        thread_count(asked, num_cores=num_cores, num_workers=1)


def test_it_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="num_threads=1000000 "):
        load_engine("/no/such/model", EngineConfig(num_threads=1_000_000), name="m")
