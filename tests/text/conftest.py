"""Tokenizers of each kind, loaded once; nothing here may touch the user's own cache folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.text.make_byte_tokenizer import FOLDER
from tests.text.make_tokenizers import byte_level_bpe, sentencepiece_like, write_folder
from tokenmill.text.tokenizer import Tokenizer

# On a busy machine an example may take long for no reason of its own.
settings.register_profile("text", deadline=None)
settings.load_profile("text")

CONFIG = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path_factory.getbasetemp() / "tokenmill-cache"))
    yield


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    return Tokenizer.load(FOLDER)


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("bpe"), byte_level_bpe(), tokenizer_config=CONFIG)


@pytest.fixture(scope="session")
def bpe_tokenizer(bpe_folder: Path) -> Tokenizer:
    return Tokenizer.load(bpe_folder)


@pytest.fixture(scope="session")
def spm_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_folder(tmp_path_factory.mktemp("spm"), sentencepiece_like(), tokenizer_config=CONFIG)
    return Tokenizer.load(folder)
