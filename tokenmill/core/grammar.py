"""A constraint on what a model may write, as text: it crosses process boundaries so, the worker compiles it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tokenmill.core.errors import BadRequestError

MAX_SOURCE_CHARS = 1_000_000


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"
    CHOICE = "choice"
    TOOL_CALLS = "tool_calls"


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    source        JSON text of the schema; "" for json_object; the expression; GBNF or Lark rules; JSON list of texts;
                  JSON of the format and functions of calls (text/parsers/tool_choice.py)
    start_after   the constraint holds only behind these ids in the output (the end of thinking); (): from the start
    param         the request's field that it came from, for errors
    """

    kind: GrammarKind
    source: str = ""
    start_after: tuple[int, ...] = ()
    param: str = "response_format"

    def check(self) -> None:
        """Raise BadRequestError for what no backend should have to look at."""
        if len(self.source) > MAX_SOURCE_CHARS:
            raise BadRequestError(
                f"{self.param} has {len(self.source)} characters; at most {MAX_SOURCE_CHARS} are possible",
                param=self.param,
            )
        if not self.source and self.kind is not GrammarKind.JSON_OBJECT:
            raise BadRequestError(f"{self.param} is empty: give a {self.kind.replace('_', ' ')}", param=self.param)
