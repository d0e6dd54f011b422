"""The seam of structured output: a backend compiles a grammar, a matcher follows one sequence through it.

Masks are packed bits: bit t % 32 of little-endian word t // 32 is set where token t may follow. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.grammar import Grammar
from tokenmill.core.registry import Registry

PackedMask = NDArray[np.uint32]


class Matcher(Protocol):
    """Where one sequence stands in a grammar. One thread at a time; which one does not matter."""

    @property
    def is_accepting(self) -> bool:
        """The text so far is whole: it may end here."""
        ...

    @property
    def is_finished(self) -> bool:
        """Nothing but an end token may follow."""
        ...

    def mask(self) -> PackedMask:
        """[ceil(vocab_size / 32)], read-only: tokens that may follow, end tokens where the text is whole.

        Raises GrammarLimitError where this step costs more than the backend's limits allow.
        """
        ...

    def advance(self, token_id: int) -> bool:
        """Take one token. False, and nothing changes, when it may not follow."""
        ...

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first, may follow one after the other. Changes nothing."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens taken: the matcher is as it was before them."""
        ...


class CompiledGrammar(Protocol):
    def new_matcher(self) -> Matcher:
        """A matcher at the start; cheap."""
        ...


class GrammarBackend(Protocol):
    """Knows the vocabulary. Any thread may compile."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """BadRequestError, naming the place in the request, when the grammar is wrong or can never be met."""
        ...


class GrammarLimitError(Exception):
    """A step of this grammar is too costly; the request ends with an error, the others go on."""


#: name -> factory (tokenizer, vocab_size) -> GrammarBackend
GRAMMAR_BACKENDS = Registry(
    "grammar backend",
    "tokenmill.grammar_backends",
    {
        "llguidance": "tokenmill.engine.structured.llguidance_backend:LlguidanceBackend",
        "xgrammar": "tokenmill.engine.structured.xgrammar_backend:XgrammarBackend",
    },
)
