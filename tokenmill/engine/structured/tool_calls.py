"""Lark rules, in llguidance's dialect, for an output of calls in a model's own markup. Torch-free.

Markup that the tokenizer has as added tokens is asked for as these tokens, never as their spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.engine.structured.schema_walk import Schema

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TAG_NAME = re.compile(r'[^">\n]{1,128}')
#: Texts of markup that tokenizers have as one token each.
_MARKS = ("｜DSML｜", "<tool_call>", "</tool_call>", "<|python_tag|>")
#: Formats without an opening: what no text may begin with.
_CALL_STARTS = {"llama3_json": r"{\s", "pythonic": r"\[\s"}
_TEXT_LIMITS = ("pattern", "format", "minLength", "maxLength")


class LarkWriter:
    """
    spec        what text/parsers/tool_choice.py wrote
    content     writes the rules of an answer that makes no call (None: there must be one) with the given rule maker
    token_id    id of an added token, None for text that is no such token
    json_style  options of every JSON value
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        token_id: Callable[[str], int | None],
        json_style: Mapping[str, Any],
        content: Callable[[Callable[[str], str]], str] | None = None,
    ) -> None:
        self._spec = spec
        self._content = content
        self._json_style = json_style
        self._rules: list[str] = []
        marks = {mark: found for mark in _MARKS if (found := token_id(mark)) is not None}
        self._token_ids = marks
        self._split = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def write(self) -> str:
        write = {
            "deepseek_v4": self._deepseek,
            "hermes": self._hermes,
            "qwen": self._hermes,
            "qwen3_coder": self._qwen3_coder,
            "llama3_json": self._llama3,
            "pythonic": self._pythonic,
        }.get(self._spec["format"])
        if write is None:
            raise CapabilityError(
                f"tool_choice cannot be enforced for tool parser {self._spec['format']!r}: use tool_choice auto",
                param="tool_choice",
            )
        opening, rest = write()
        start = self._start(opening, rest)
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _start(self, opening: str, rest: str) -> str:
        calls = f"{self._text(opening)} {rest}"
        if self._content is not None:
            return f"{calls} | {self._content(self._rule)}"
        if not self._spec["has_text"]:
            return calls
        parts = self._split.split(opening, maxsplit=1) if self._split is not None else [opening]
        if len(parts) == 3:  # text holds no added tokens, so the first of them opens the calls
            return f"{self._rule('/(?s:.*)/')} ({self._text(parts[1] + parts[2])} {rest})?"
        if opening:
            head, same = self._rule(f"/(?s:.*){_regex(opening)}/", "[lazy]"), _regex(opening)
            self._rules.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*){same}(?s:.*)/")
            return f"TEXT | {head} {rest}"
        first = _CALL_STARTS[self._spec["format"]]
        return f"{calls} | {self._rule(rf'/([^{first}](?s:.*))?/')}"

    # -- pieces --

    def _text(self, text: str) -> str:
        """`text` exactly, added tokens as tokens."""
        parts = self._split.split(text) if self._split is not None else [text]
        shown = [
            f"<[{self._token_ids[part]}]>" if part in self._token_ids else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        ]
        return " ".join(shown)

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _json(self, schema: Any) -> str:
        styled = {"x-guidance": self._json_style, **(schema if isinstance(schema, Mapping) else {})}
        return self._rule(f"%json {json.dumps(styled)}")

    def _arguments(self, function: Mapping[str, Any]) -> str:
        """Of a function that lists its parameters no others are taken, as in the formats that have a tag for each."""
        schema = function["parameters"]
        return self._json({"additionalProperties": False, **schema} if "properties" in schema else schema)

    def _free_text(self, close: str) -> str:
        """Any text up to `close`, which is included. Text holds no added tokens, so one of them ends it for certain."""
        parts = self._split.split(close, maxsplit=1) if self._split is not None else [close]
        if len(parts) == 1:
            return self._rule(f"/(?s:.*){_regex(close)}/", "[lazy]")
        before, mark, after = parts
        return self._rule(f"/(?s:.*){_regex(before)}/") + " " + self._text(mark + after)

    def _repeated(self, call: str, separator: str) -> str:
        return call if self._spec["max_calls"] == 1 else f"{call} ({self._text(separator)} {call})*"

    def _one_of(self, make: Callable[[Mapping[str, Any]], str]) -> str:
        calls = []
        for function in self._spec["functions"]:
            if not _NAME.fullmatch(function["name"]):
                path = f"tools[{function['index']}].function.name"
                raise BadRequestError(
                    f"{path} is {function['name'][:80]!r}: use letters, digits, dots, dashes and underscores",
                    param=path,
                )
            calls.append(self._rule(make(function)))
        return self._rule(" | ".join(calls))

    # -- formats --

    def _hermes(self) -> tuple[str, str]:
        def call(function: Mapping[str, Any]) -> str:
            opening = self._text(f'{{"name": "{function["name"]}", "arguments": ')
            return f"{opening} {self._arguments(function)} {self._text('}' + chr(10) + '</tool_call>')}"

        return "<tool_call>\n", self._repeated(self._one_of(call), "\n<tool_call>\n")

    def _llama3(self) -> tuple[str, str]:
        def call(function: Mapping[str, Any]) -> str:
            # cut as JSON is, so that an answer in JSON beside it can be told from a call
            pieces = ("{", '"name"', ": ", f'"{function["name"]}"', ", ", '"parameters"', ": ")
            return f"{' '.join(map(self._text, pieces))} {self._arguments(function)} {self._text('}')}"

        return "", self._repeated(self._one_of(call), "; ")

    def _deepseek(self) -> tuple[str, str]:
        def parameter(name: str, schema: Any, close: str) -> str:
            tag = f'<｜DSML｜parameter name="{name}" string="{{}}">'
            texts, others = _split_by_text(schema)
            forms = [self._text(tag.format("true")) + " " + self._string(texts, close)] if texts is not None else []
            if others is not None:
                forms.append(f"{self._text(tag.format('false'))} {self._json(others)} {self._text(close)}")
            return self._rule(" | ".join(forms))

        def call(function: Mapping[str, Any]) -> str:
            opening = self._text(f'<｜DSML｜invoke name="{function["name"]}">\n')
            parameters = self._parameters(function, parameter, "</｜DSML｜parameter>\n", nothing="\n")
            return f"{opening} {parameters} {self._text('</｜DSML｜invoke>')}"

        calls = self._repeated(self._one_of(call), "\n")
        # the newline apart, as between calls: a lexer that has begun on one text does not go back for another
        return "\n\n<｜DSML｜tool_calls>\n", f"{calls} {self._text(chr(10))} {self._text('</｜DSML｜tool_calls>')}"

    def _qwen3_coder(self) -> tuple[str, str]:
        def parameter(name: str, schema: Any, close: str) -> str:
            texts, others = _split_by_text(schema)
            forms = [self._string(texts, close)] if texts is not None else []
            if others is not None:
                forms.append(f"{self._json(others)} {self._text(close)}")
            return self._rule(f"{self._text(f'<parameter={name}>' + chr(10))} ({' | '.join(forms)})")

        def call(function: Mapping[str, Any]) -> str:
            opening = self._text(f"<function={function['name']}>\n")
            parameters = self._parameters(function, parameter, "\n</parameter>\n")
            return f"{opening} {parameters} {self._text('</function>' + chr(10) + '</tool_call>')}"

        return "<tool_call>\n", self._repeated(self._one_of(call), "\n<tool_call>\n")

    def _pythonic(self) -> tuple[str, str]:
        def call(function: Mapping[str, Any]) -> str:
            needed: list[str] = []
            optional: list[str] = []
            for name, schema, is_needed, path in _properties(function):
                if not name.isidentifier():
                    raise BadRequestError(f"{path} is no name that Python takes: rename it", param=path)
                (needed if is_needed else optional).append(f"{self._text(name + '=')} {self._json(schema)}")
            comma = self._text(", ")
            rest = " ".join(f"({comma} {one})?" for one in optional)
            arguments = f" {comma} ".join(needed) + f" {rest}" if needed else self._any_of(optional, comma)
            return f"{self._text(function['name'] + '(')} {arguments} {self._text(')')}"

        return "", f"{self._text('[')} {self._repeated(self._one_of(call), ', ')} {self._text(']')}"

    def _any_of(self, optional: list[str], comma: str) -> str:
        """Any of the arguments, in order, commas between them."""
        forms = [
            " ".join([first, *(f"({comma} {one})?" for one in optional[i + 1 :])]) for i, first in enumerate(optional)
        ]
        return f"({' | '.join(forms)})?" if forms else ""

    # -- parameters of the formats that have a tag for each --

    def _parameters(
        self, function: Mapping[str, Any], parameter: Callable[[str, Any, str], str], close: str, nothing: str = ""
    ) -> str:
        """Required and optional parameters in the schema's order; `nothing` stands where there are none."""
        written: list[str] = []
        has_needed = False
        for name, schema, is_needed, path in _properties(function):
            if not _TAG_NAME.fullmatch(name):
                raise BadRequestError(f"{path} has a name that does not fit into a tag: rename it", param=path)
            if function["is_strict"]:
                _check_text_limits(schema, path)
            written.append(parameter(name, schema, close) + ("" if is_needed else "?"))
            has_needed = has_needed or is_needed
        if has_needed or not nothing:
            return " ".join(written)
        some = [" ".join([one.removesuffix("?"), *written[i + 1 :]]) for i, one in enumerate(written)]
        return f"({' | '.join([*some, self._text(nothing)])})"

    def _string(self, values: list[str] | None, close: str) -> str:
        """One of `values`, or any text when there are none, up to the closing tag."""
        if not values:
            return self._free_text(close)
        shown = " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
        return f"({shown}) {self._text(close)}"


def _regex(text: str) -> str:
    return re.sub(r"([^\w\s<>｜])", r"\\\1", text).replace("\n", "\\n")


def _properties(function: Mapping[str, Any]) -> list[tuple[str, Any, bool, str]]:
    """(name, schema, whether it is required, path) of each parameter, its schema complete by itself."""
    root: Schema = function["parameters"]
    path = f"tools[{function['index']}].function.parameters"
    if any(keyword in root for keyword in ("$ref", "anyOf", "oneOf", "allOf")):
        raise CapabilityError(f"{path} is put together of other schemas: list its properties", param=path)
    shared = {keyword: root[keyword] for keyword in ("$defs", "definitions") if keyword in root}
    properties, required = root.get("properties", {}), root.get("required", [])
    unknown = next((i for i, name in enumerate(required) if name not in properties), None)
    if unknown is not None:
        where = f"{path}.required[{unknown}]"
        raise BadRequestError(f"{where} asks for a parameter that the properties do not list: list it", param=where)
    return [
        (
            name,
            {**shared, **schema} if isinstance(schema, Mapping) else schema,
            name in required,
            f"{path}.properties.{name}",
        )
        for name, schema in properties.items()
    ]


def _split_by_text(schema: Any) -> tuple[list[str] | None, Any]:
    """A value written as text, and one written as JSON: ([] any text, or these; None no text), (schema or None)."""
    if not isinstance(schema, Mapping):
        return [], True
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        texts = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        return texts or None, {"enum": others} if others else None
    types = schema.get("type")
    if types == "string":
        return [], None
    if isinstance(types, list) and "string" in types:
        others = [name for name in types if name != "string"]
        return [], {**schema, "type": others} if others else None
    return None, schema


def _check_text_limits(schema: Any, path: str) -> None:
    limits = [limit for limit in _TEXT_LIMITS if isinstance(schema, Mapping) and limit in schema]
    if limits and _split_by_text(schema)[0] is not None:
        raise CapabilityError(
            f"{path}.{limits[0]} of a strict function cannot be enforced in this model's call format: leave it out",
            param=f"{path}.{limits[0]}",
        )
