"""Helpers of the kernel tests."""

import pytest
import torch

from tokenmill.kernels.native.build import build
from tokenmill.kernels.native.library import Library


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


def library_for(isa: str) -> Library:
    """The C kernels compiled for `isa`, on two threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_CPU_ISA", isa)
        library = Library(build())
    library.start(2)
    return library
