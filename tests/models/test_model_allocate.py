"""Cache memory is zero, aligned, and costs nothing before it is written."""

import resource

import torch

from tokenmill.models.allocate import lazy_zeros


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_memory_is_taken_as_it_is_written():
    before = resident_bytes()
    tensor = lazy_zeros((512, 2**20), torch.bfloat16)  # 1 GiB
    assert resident_bytes() - before < 2**26
    tensor[3, :1000] = 1.0
    assert tensor[3].sum() == 1000 and not tensor[4].any()
    assert tensor.data_ptr() % 4096 == 0 and resident_bytes() - before < 2**26


def test_nothing_is_a_size_too():
    assert lazy_zeros((0, 4), torch.float32).shape == (0, 4)
