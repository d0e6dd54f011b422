"""A corpus and a model in sizes for tests; everything else is what trains v4-nano."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deepseek_v4.tiny import v4_json
from training.build import build
from training.corpus import code

VOCAB_SIZE = 512


@pytest.fixture(scope="session", autouse=True)
def few_files() -> Iterator[None]:
    """Small files of the library only: reading all of them takes longer than the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "_MAX_BYTES", 6_000)
        code.files.cache_clear()
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpus")
    build(out, 200_000, 6_000, vocab_size=VOCAB_SIZE, real_chars=60_000)
    return out


@pytest.fixture(scope="session")
def small_config() -> dict:
    return v4_json(vocab_size=VOCAB_SIZE, compress_ratios=[0, 32, 4, 0], num_hidden_layers=3, swiglu_limit=10.0)
