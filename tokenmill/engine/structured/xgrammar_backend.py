"""Structured output by xgrammar, where it is installed: its vocabulary, its grammars, a matcher of the seam.

xgrammar itself imports torch, so it is imported by the backend that is made, not by this module. Not responsible for
calls of tools: their rules are written in llguidance's language.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmill.core.errors import BadRequestError, CapabilityError, ConfigError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.engine.structured.base import PackedMask
from tokenmill.engine.structured.xgrammar_schema import enforced_schema, has_inner_anchor, parse_json
from tokenmill.text.tokenizer import Tokenizer

#: Fixed, so that a model that likes blanks cannot fill its answer with them.
_JSON_STYLE: Any = {"any_whitespace": False, "separators": (", ", ": "), "strict_mode": False}
_CACHE_BYTES = 256 * 2**20
_NUM_THREADS = 2
_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Facts:
    """
    tokens        bytes of each id of the output head, none for what is no text
    possible_ids  text and end tokens: others may never follow
    possible      their mask
    ends          mask of the end tokens
    """

    tokens: list[bytes]
    eos_token_ids: frozenset[int]
    possible_ids: frozenset[int]
    possible: PackedMask
    ends: PackedMask


class XgrammarBackend:
    """
    vocab_size   rows of the model's output head; ids beyond the tokenizer's are never allowed
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._xgrammar = _import_xgrammar()
        self._facts = facts = _read(tokenizer, vocab_size)
        vocabulary = self._xgrammar.TokenizerInfo(
            facts.tokens, vocab_size=vocab_size, stop_token_ids=sorted(facts.eos_token_ids)
        )
        self._compiler = self._xgrammar.GrammarCompiler(
            vocabulary, max_threads=_NUM_THREADS, cache_limit_bytes=_CACHE_BYTES
        )

    def compile(self, grammar: Grammar) -> XgrammarGrammar:
        grammar.check()
        try:
            compiled = self._compiled(grammar)
        except (RuntimeError, ValueError) as error:  # what xgrammar raises for every grammar that it cannot read
            raise _refusal(grammar, str(error)) from None
        made = XgrammarGrammar(self._xgrammar, compiled, self._facts)
        if not made.new_matcher().mask().any():
            raise _refusal(grammar, "nothing can be written that meets it")
        return made

    def _compiled(self, grammar: Grammar) -> Any:
        """The grammar in xgrammar's own form."""
        match grammar.kind:
            case GrammarKind.JSON_OBJECT:
                return self._compiler.compile_json_schema('{"type": "object"}', **_JSON_STYLE)
            case GrammarKind.JSON_SCHEMA:
                schema = enforced_schema(parse_json(grammar.source, grammar.param), grammar.param)
                return self._compiler.compile_json_schema(json.dumps(schema), **_JSON_STYLE)
            case GrammarKind.REGEX:
                if has_inner_anchor(grammar.source):
                    raise CapabilityError(
                        f"{grammar.param} has an anchor within it, which grammar backend 'xgrammar' passes over: leave "
                        "it out, or start the server with --grammar-backend llguidance",
                        param=grammar.param,
                    )
                return self._compiler.compile_regex(grammar.source)
            case GrammarKind.CHOICE:
                return self._compiler.compile_grammar("root ::= " + " | ".join(map(_literal, _choices(grammar))))
            case GrammarKind.EBNF:
                is_gbnf = "::=" in grammar.source
                return (self._compiler.compile_grammar if is_gbnf else self._compiler.compile_lark)(grammar.source)
            case GrammarKind.TOOL_CALLS:
                raise CapabilityError(
                    f"{grammar.param} cannot be enforced by grammar backend 'xgrammar', which enforces schemas, "
                    "expressions, choices and rules: set tool_choice to 'auto' without strict functions, or start the "
                    "server with --grammar-backend llguidance",
                    param=grammar.param,
                )


class XgrammarGrammar:
    def __init__(self, xgrammar: Any, compiled: Any, facts: _Facts) -> None:
        self._xgrammar = xgrammar
        self._compiled = compiled
        self._facts = facts

    def new_matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._xgrammar.GrammarMatcher(self._compiled), self._facts)


class XgrammarMatcher:
    """xgrammar stops at an end token: those taken behind it are only counted here."""

    def __init__(self, matcher: Any, facts: _Facts) -> None:
        self._matcher = matcher
        self._facts = facts
        #: For each token taken: whether xgrammar took it too.
        self._taken: list[bool] = []
        self._mask: PackedMask | None = None

    @property
    def is_accepting(self) -> bool:
        return bool(self._matcher.is_terminated() or self._matcher.is_completed())

    @property
    def is_finished(self) -> bool:
        return self.is_accepting and not (self.mask() & ~self._facts.ends).any()

    def mask(self) -> PackedMask:
        if self._matcher.is_terminated():
            return self._facts.ends
        if self._mask is None:
            words = np.zeros((1, len(self._facts.ends)), dtype=np.int32)
            self._matcher.fill_next_token_bitmask(words)
            mask = words[0].view(np.uint32) & self._facts.possible  # xgrammar sets bits behind the last id, too
            mask.flags.writeable = False
            self._mask = mask
        return self._mask

    def advance(self, token_id: int) -> bool:
        if self._matcher.is_terminated():
            if token_id not in self._facts.eos_token_ids:
                return False
            self._taken.append(False)
            return True
        # asked for a token that is no text, xgrammar writes a warning to the terminal
        if token_id not in self._facts.possible_ids or not self._matcher.accept_token(token_id):
            return False
        self._taken.append(True)
        self._mask = None
        return True

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        mask, num_taken = self._mask, 0
        while num_taken < len(token_ids) and self.advance(token_ids[num_taken]):
            num_taken += 1
        self.rollback(num_taken)
        self._mask = mask
        return num_taken

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self._taken), f"rollback of {num_tokens} tokens, {len(self._taken)} taken"
        if num_tokens == 0:
            return
        num_undone = sum(self._taken[-num_tokens:])
        del self._taken[-num_tokens:]
        if num_undone:
            self._matcher.rollback(num_undone)
            self._mask = None


# -- xgrammar and its vocabulary --


def _import_xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise ConfigError(
            f"grammar backend 'xgrammar' needs the xgrammar package, which cannot be imported ({error}): "
            "pip install 'tokenmill[xgrammar]', or use --grammar-backend llguidance"
        ) from None
    return xgrammar


def _read(tokenizer: Tokenizer, vocab_size: int) -> _Facts:
    """Control tokens are no text: a grammar cannot be met with their spelling. xgrammar never allows an empty one."""
    assert tokenizer.eos_token_ids, "structured output needs an end token"
    eos_token_ids = frozenset(tokenizer.eos_token_ids)
    no_text = tokenizer.added_token_ids | eos_token_ids
    size = min(vocab_size, tokenizer.vocab_size)
    tokens = [b"" if i in no_text else tokenizer.token_bytes(i) for i in range(size)] + [b""] * (vocab_size - size)
    possible_ids = eos_token_ids | {i for i, token in enumerate(tokens) if token}
    possible, ends = _packed(possible_ids, vocab_size), _packed(eos_token_ids, vocab_size)
    return _Facts(tokens, eos_token_ids, possible_ids, possible, ends)


def _packed(token_ids: frozenset[int], vocab_size: int) -> PackedMask:
    words = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    words.flags.writeable = False
    return words


# -- sources and errors --


def _choices(grammar: Grammar) -> list[str]:
    choices = parse_json(grammar.source, grammar.param)
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) for text in choices):
        raise BadRequestError(f"{grammar.param} must be a list of texts, not empty", param=grammar.param)
    return choices


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refusal(grammar: Grammar, error: str) -> BadRequestError:
    reason = " ".join(error.split())
    reason = reason if len(reason) <= _MAX_REASON_CHARS else reason[:_MAX_REASON_CHARS] + "…"
    kind = grammar.kind.replace("_", " ")
    return BadRequestError(f"{grammar.param}: this {kind} cannot be enforced: {reason}", param=grammar.param)
