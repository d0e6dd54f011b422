"""Helpers of the kernel tests."""

import pytest
import torch


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=[1, 2])
def num_threads(request):
    """Runs the test with one and with two threads, as the invariants must hold for both."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
