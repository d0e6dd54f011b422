"""The built-in backend passes the suite that plug-ins run; the suite finds what it should."""

from __future__ import annotations

from typing import Any

import pytest

from tests.structured.conftest import NUM_PADDING
from tests.structured.helpers import GRAMMARS
from tokenmill.engine.structured.base import GrammarBackend, Matcher
from tokenmill.engine.structured.conformance import check_grammar_backend
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_llguidance


def _check(backend: Any, tokenizer: Tokenizer) -> None:
    check_grammar_backend(
        backend,
        list(GRAMMARS.values()),
        vocab_size=tokenizer.vocab_size + NUM_PADDING,
        eos_token_ids=tokenizer.eos_token_ids,
    )


def test_llguidance_conforms(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    _check(backend, tokenizer)


class _Broken:
    """A backend whose matchers do one thing wrong."""

    def __init__(self, backend: GrammarBackend, fault: str) -> None:
        self._backend = backend
        self._fault = fault

    def compile(self, grammar: Any) -> Any:
        if grammar.param == "here" and self._fault == "refusal":
            return None
        compiled, fault = self._backend.compile(grammar), self._fault

        class Compiled:
            def new_matcher(self) -> Any:
                matcher = compiled.new_matcher()
                return _BrokenMatcher(matcher, fault) if fault != "refusal" else matcher

        return Compiled()


class _BrokenMatcher:
    def __init__(self, matcher: Matcher, fault: str) -> None:
        self._matcher = matcher
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens - (self._fault == "rollback"))

    def advance(self, token_id: int) -> bool:
        return self._matcher.advance(token_id) or self._fault == "advance"

    def mask(self) -> Any:
        mask = self._matcher.mask()
        return mask[:-1] if self._fault == "mask" else mask


@pytest.mark.parametrize("fault", ["rollback", "advance", "mask", "refusal"])
def test_the_suite_finds_what_is_wrong(backend: GrammarBackend, tokenizer: Tokenizer, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        _check(_Broken(backend, fault), tokenizer)
