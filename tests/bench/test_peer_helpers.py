"""Choices of the comparison that need no model."""

import pytest

from tokenmill.bench.throughput import ThroughputBench
from tokenmill.bench.transformers_peer import batch_sizes, common_prefix_share
from tokenmill.core.errors import ConfigError


def test_batch_sizes_reach_from_few_to_all() -> None:
    assert batch_sizes(32) == [4, 8, 16, 32]
    assert batch_sizes(3) == [1, 3]
    assert batch_sizes(1) == [1]
    assert batch_sizes(100)[-1] == 100 and batch_sizes(100) == sorted(batch_sizes(100))


def test_common_prefix_share_is_the_median() -> None:
    assert common_prefix_share([[1, 2, 3, 4]], [[1, 2, 9, 4]]) == 0.5
    assert common_prefix_share([[1], [1, 2], [5]], [[1], [1, 2], [6]]) == 1.0
    assert common_prefix_share([[]], [[1]]) == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_prompts": 0}, r"num_prompts=0"),
        ({"osl": 0}, r"osl=0"),
        ({"against": "vllm"}, r"--against 'vllm' is unknown: possible: transformers"),
        ({"isl": 4, "num_shared": 5}, r"shared prefix of 5"),
    ],
)
def test_impossible_benchmarks_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ThroughputBench("m", **settings).check()
