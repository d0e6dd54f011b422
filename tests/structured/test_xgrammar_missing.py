"""Without its package the xgrammar backend says what to install. With it: tests/peers/xgrammar."""

from __future__ import annotations

import sys

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.engine.structured.base import GRAMMAR_BACKENDS
from tokenmill.text.tokenizer import Tokenizer


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    factory = GRAMMAR_BACKENDS.load("xgrammar")
    with pytest.raises(ConfigError, match=r"pip install 'tokenmill\[xgrammar\]'"):
        factory(tokenizer, tokenizer.vocab_size)
