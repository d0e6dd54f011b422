"""Structured output by llguidance: its tokenizer, grammars in its language, a matcher of the seam. Torch-free.

JSON is written compactly: at most one space after a colon or comma and no other white space, so that a model that
likes blanks cannot fill its answer with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.engine.structured.base import GrammarLimitError, PackedMask
from tokenmill.engine.structured.schema_check import check_schema
from tokenmill.engine.structured.schema_walk import walk
from tokenmill.engine.structured.tool_calls import LarkWriter
from tokenmill.text.tokenizer import Tokenizer

_JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
#: Formats that llguidance enforces; JSON Schema makes any other an annotation.
_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"]
)
_MAX_REASON_CHARS = 300


class LlguidanceBackend:
    """
    vocab_size   rows of the model's output head; ids beyond the tokenizer's are never allowed
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = _ll_tokenizer(tokenizer, vocab_size)
        self._added_token_id = _added_token_ids(tokenizer).get
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(tokenizer.eos_token_ids)
        self._limits = LLParserLimits(verbose_errors=False)

    def compile(self, grammar: Grammar) -> LlguidanceGrammar:
        grammar.check()
        matcher = LLMatcher(self._tokenizer, self._source(grammar), log_level=0, limits=self._limits)
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        probe = matcher.deep_copy()
        probe.compute_bitmask()  # the first mask costs most, and shows whether anything can be written
        if probe.is_error():
            raise _refusal(grammar, f"nothing can be written that meets it ({probe.get_error()})")
        return LlguidanceGrammar(matcher, self._vocab_size, self._eos_token_ids)

    def _source(self, grammar: Grammar) -> str:
        """The grammar in llguidance's own form."""
        match grammar.kind:
            case GrammarKind.JSON_OBJECT:
                return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=_JSON_STYLE)
            case GrammarKind.JSON_SCHEMA:
                schema = _enforced(_parse(grammar), grammar.param)
                return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_JSON_STYLE)
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(grammar.source)
            case GrammarKind.CHOICE:
                return LLMatcher.grammar_from_lark("start: " + " | ".join(map(_literal, _choices(grammar))))
            case GrammarKind.EBNF:
                return LLMatcher.grammar_from_lark(_lark(grammar))
            case GrammarKind.TOOL_CALLS:
                spec = _tool_calls(grammar)
                content = None if "content" not in spec else partial(_content_rules, Grammar(**spec["content"]))
                writer = LarkWriter(spec, self._added_token_id, _JSON_STYLE, content)
                return LLMatcher.grammar_from_lark(writer.write())


class LlguidanceGrammar:
    def __init__(self, pristine: LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._pristine = pristine
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def new_matcher(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self._pristine.deep_copy(), self._vocab_size, self._eos_token_ids)


class LlguidanceMatcher:
    """llguidance has no state behind a finished grammar: end tokens taken there are only counted here."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._num_words = (vocab_size + 31) // 32
        self._eos_token_ids = eos_token_ids
        #: For each token taken: whether llguidance took it too.
        self._taken: list[bool] = []
        self._mask: PackedMask | None = None

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        return self._matcher.is_stopped()

    def mask(self) -> PackedMask:
        if self._mask is None:
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype="<u4")
            if self._matcher.is_error():
                raise GrammarLimitError(_reason(self._matcher.get_error()))
            mask = np.zeros(self._num_words, dtype=np.uint32)
            mask[: len(packed)] = packed[: self._num_words]
            mask.flags.writeable = False
            self._mask = mask
        return self._mask

    def advance(self, token_id: int) -> bool:
        if self.is_finished:
            if token_id not in self._eos_token_ids:
                return False
            self._taken.append(False)
            return True
        if self._matcher.validate_tokens([token_id]) != 1:
            return False
        is_taken = self._matcher.consume_token(token_id)
        assert is_taken, f"token {token_id} was valid and is not taken: {self._matcher.get_error()}"
        self._taken.append(True)
        self._mask = None
        return True

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        num_taken = 0
        while num_taken < len(token_ids) and self.advance(token_ids[num_taken]):
            num_taken += 1
        self.rollback(num_taken)
        return num_taken

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens <= len(self._taken), f"rollback of {num_tokens} tokens, {len(self._taken)} taken"
        if num_tokens == 0:
            return
        undone = self._taken[-num_tokens:]
        del self._taken[-num_tokens:]
        if any(undone):
            is_undone = self._matcher.rollback(sum(undone))
            assert is_undone, f"rollback failed: {self._matcher.get_error()}"
            self._mask = None


# -- tokenizer --


class _Vocabulary:
    """What llguidance asks of a tokenizer. Control tokens are no text: a grammar cannot be met with their spelling."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.added_token_ids | set(tokenizer.eos_token_ids))
        size = max(vocab_size, tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) if i < tokenizer.vocab_size else b"" for i in range(size)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _ll_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    assert tokenizer.eos_token_ids, "structured output needs an end token"
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, vocab_size)), eos_token=list(tokenizer.eos_token_ids))


def _added_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {tokenizer.token_text(token_id): token_id for token_id in tokenizer.added_token_ids}


# -- sources --


def _parse(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.source)
    except RecursionError:
        raise BadRequestError(f"{grammar.param} is nested too deep: make it flatter", param=grammar.param) from None
    except ValueError as error:
        raise BadRequestError(f"{grammar.param} is no JSON ({error}): correct it", param=grammar.param) from None


def _enforced(schema: Any, path: str) -> Any:
    """The schema, checked, without what only annotates."""
    check_schema(schema, path)
    for inner, _ in walk(schema, ""):
        if isinstance(inner, dict) and inner.get("format", "unknown") not in _FORMATS:
            del inner["format"]
    if isinstance(schema, dict):
        schema.pop("$schema", None)
    return schema


def _tool_calls(grammar: Grammar) -> Any:
    spec = _parse(grammar)
    for function in spec["functions"]:
        path = f"{grammar.param}[{function['index']}].function.parameters"
        function["parameters"] = _enforced(function["parameters"], path)
    return spec


def _choices(grammar: Grammar) -> list[str]:
    choices = _parse(grammar)
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) for text in choices):
        raise BadRequestError(f"{grammar.param} must be a list of texts, not empty", param=grammar.param)
    return choices


def _content_rules(grammar: Grammar, rule: Callable[[str], str]) -> str:
    """An answer that is no call, as a part of larger rules."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return rule("%json " + json.dumps({"x-guidance": _JSON_STYLE, "type": "object"}))
        case GrammarKind.JSON_SCHEMA:
            schema = _enforced(_parse(grammar), grammar.param)
            return rule("%json " + json.dumps({"x-guidance": _JSON_STYLE, **(schema if schema is not True else {})}))
        case GrammarKind.REGEX:
            return rule("/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", grammar.source) + "/")
        case GrammarKind.CHOICE:
            return rule(" | ".join(map(_literal, _choices(grammar))))
    raise CapabilityError(
        f"{grammar.param} beside tools cannot be enforced: give a schema, or set tool_choice to 'none'",
        param=grammar.param,
    )


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _lark(grammar: Grammar) -> str:
    if "::=" not in grammar.source:
        return grammar.source
    try:
        return any_to_lark(grammar.source)
    except Exception as error:  # the converter raises bare exceptions for rules that are not there
        raise _refusal(grammar, str(error)) from None


# -- errors --


def _reason(error: str) -> str:
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + "…"


def _refusal(grammar: Grammar, error: str) -> BadRequestError:
    path = grammar.param
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        path = _find(json.loads(grammar.source), error, path)
    elif grammar.kind is GrammarKind.TOOL_CALLS:
        path = _find_function(_tool_calls(grammar), error, path)
    kind = grammar.kind.replace("_", " ")
    return BadRequestError(f"{path}: this {kind} cannot be enforced: {_reason(error)}", param=path)


def _find(schema: Any, error: str, path: str) -> str:
    """Path of the keyword that an error of llguidance is about, as far as that can be told."""
    unknown = re.search(r"Unimplemented keys: (\[.*?\])", error)
    if unknown:
        keys = json.loads(unknown[1])
        return next((f"{at}.{key}" for inner, at in walk(schema, path) for key in keys if _has(inner, key)), path)
    if "regex" in error:
        return next((f"{at}.pattern" for inner, at in walk(schema, path) if _has_bad_pattern(inner)), path)
    return path


def _find_function(spec: Any, error: str, path: str) -> str:
    content = spec.get("content")
    if content is not None and content["kind"] == GrammarKind.JSON_SCHEMA and _is_refused(content["source"]):
        return _find(json.loads(content["source"]), error, content["param"])
    for function in spec["functions"]:
        schema = function["parameters"]
        if _is_refused(schema):
            return _find(schema, error, f"{path}[{function['index']}].function.parameters")
    return path


def _is_refused(schema: Any) -> bool:
    return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema, defaults=_JSON_STYLE)))


def _has(schema: Any, keyword: str) -> bool:
    return isinstance(schema, Mapping) and keyword in schema


def _has_bad_pattern(schema: Any) -> bool:
    if not _has(schema, "pattern"):
        return False
    alone = {"type": "string", "pattern": schema["pattern"]}
    return bool(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(alone)))
