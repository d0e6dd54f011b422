"""Calls written as nested tags: a block of invokes with one tag per parameter (DeepSeek's DSML, Qwen3-Coder's XML).

The machine knows the nesting, a TaggedSyntax the spelling. Not responsible for reasoning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from tokenmill.text.parsers.base import (
    BufferedParser,
    NeedMoreText,
    find_first,
    marker_at,
    partial_length,
    skip_whitespace,
    tag_end,
)
from tokenmill.text.parsers.calls import CallSink
from tokenmill.text.parsers.typed_values import json_value


@dataclass(frozen=True, slots=True)
class TaggedSyntax:
    """
    block_opens, block_closes   tags around a block of calls, the same number of each
    invoke_tag, parameter_tag   whole opening tags; group `name`, and `string` ("true"/"false") where the format has it
    *_prefix                    how such a tag begins
    max_lead                    most newlines right before a block that belong to the markup
    stem                        text that only markup holds: an end of output after it was cut inside a tag
    strips_newline              one newline on either side of a parameter's value belongs to the markup
    """

    block_opens: tuple[str, ...]
    block_closes: tuple[str, ...]
    invoke_prefix: str
    invoke_tag: re.Pattern[str]
    invoke_close: str
    parameter_prefix: str
    parameter_tag: re.Pattern[str]
    parameter_close: str
    max_lead: int
    stem: str
    strips_newline: bool


class TaggedCallParser(BufferedParser):
    """
    is_string   (function, parameter, the tag's own word or None) -> the value is text as it stands; None: whatever it
                looks like
    """

    def __init__(
        self,
        syntax: TaggedSyntax,
        is_string: Callable[[str, str, str | None], bool | None],
        make_id: Callable[[], str],
    ) -> None:
        super().__init__(self._in_content)
        self._syntax = syntax
        self._is_string = is_string
        self._calls = CallSink(self._emit, make_id)
        self._function = ""
        self._num_parameters = 0
        self._key = ""
        self._value: list[str] = []
        self._value_is_string: bool | None = None
        self._is_value_start = False
        self._block_has_calls = False

    # -- outside --

    def _in_content(self) -> None:
        found = find_first(self._text, self._syntax.block_opens)
        position = found[0] if found else len(self._text) - partial_length(self._text, self._syntax.block_opens)
        lead = self._lead_before(position)
        self._content(self._take(position - lead))
        if found is None:
            raise NeedMoreText
        self._calls.read(self._take(lead + len(found[1])))
        self._block_has_calls = False
        self._state = self._in_block

    def _lead_before(self, position: int) -> int:
        """How many of the newlines right before `position` may belong to the markup."""
        lead = 0
        while lead < min(self._syntax.max_lead, position) and self._text[position - lead - 1] == "\n":
            lead += 1
        return lead

    def _in_verbatim(self) -> None:
        """After a malformed call: the rest of its block is content."""
        found = find_first(self._text, self._syntax.block_closes)
        if found is None:
            self._content(self._take(len(self._text) - partial_length(self._text, self._syntax.block_closes)))
            raise NeedMoreText
        self._content(self._take(found[0] + len(found[1])))
        self._state = self._in_content

    # -- between calls --

    def _in_block(self) -> None:
        syntax = self._syntax
        position = skip_whitespace(self._text)
        marker = marker_at(self._text, position, (syntax.invoke_prefix, *syntax.block_closes))
        if marker == syntax.invoke_prefix:
            self._open_invoke(position)
        elif marker is not None and self._block_has_calls:
            self._take(position + len(marker))
            self._state = self._in_content
        elif self._block_has_calls:  # text after a call: the block is over, though nobody closed it
            self._state = self._in_content
        else:
            self._fail()

    def _open_invoke(self, position: int) -> None:
        end = tag_end(self._text, position)
        match = None if end is None else self._syntax.invoke_tag.fullmatch(self._text, position, end)
        if match is None or end is None:
            self._fail()
            return
        self._calls.read(self._take(end))
        self._function = match["name"]
        self._num_parameters = 0
        self._calls.start(self._function)
        self._state = self._in_invoke

    # -- inside a call --

    def _in_invoke(self) -> None:
        syntax = self._syntax
        position = skip_whitespace(self._text)
        marker = marker_at(self._text, position, (syntax.parameter_prefix, syntax.invoke_close, *syntax.block_closes))
        if marker == syntax.parameter_prefix:
            self._open_parameter(position)
        elif marker is None:
            self._fail()
        else:
            if marker == syntax.invoke_close:
                self._calls.read(self._take(position + len(marker)))
            self._calls.arguments("}" if self._num_parameters else "{}")
            self._calls.end()
            self._block_has_calls = True
            self._state = self._in_block

    def _open_parameter(self, position: int) -> None:
        end = tag_end(self._text, position)
        match = None if end is None else self._syntax.parameter_tag.fullmatch(self._text, position, end)
        if match is None or end is None:
            self._fail()
            return
        self._calls.read(self._take(end))
        self._key = ("{" if self._num_parameters == 0 else ", ") + _quoted(match["name"]) + ": "
        self._value_is_string = self._is_string(self._function, match["name"], match.groupdict().get("string"))
        if self._value_is_string:
            self._calls.arguments(self._key + '"')
        self._is_value_start = self._syntax.strips_newline
        self._state = self._in_value

    def _in_value(self) -> None:
        close = self._syntax.parameter_close
        if self._is_value_start:
            self._is_value_start = False
            if self._text[0] == "\n":
                self._calls.read(self._take(1))
                return
        position = self._text.find(close)
        if position < 0:
            safe = len(self._text) - partial_length(self._text, (close,))
            self._read_value(safe - self._trailing_newline(safe))
            raise NeedMoreText
        self._read_value(position - self._trailing_newline(position))
        self._calls.read(self._take(self._text.index(close) + len(close)))
        self._end_value()
        self._state = self._in_invoke

    def _trailing_newline(self, position: int) -> int:
        return int(self._syntax.strips_newline and position > 0 and self._text[position - 1] == "\n")

    def _read_value(self, num_chars: int) -> None:
        piece = self._take(num_chars)
        self._calls.read(piece)
        if self._value_is_string:
            self._calls.arguments(_quoted(piece)[1:-1])
        else:
            self._value.append(piece)

    def _end_value(self) -> None:
        self._num_parameters += 1
        if self._value_is_string:
            self._calls.arguments('"')
            return
        value = "".join(self._value)
        self._value.clear()
        self._calls.arguments(self._key + (json_value(value) or _quoted(value)))

    # -- ends --

    def _fail(self) -> None:
        self._value.clear()
        self._state = self._in_verbatim if self._calls.fail() else self._in_late_failure

    def _in_late_failure(self) -> None:
        """The call's beginning is out: what follows until its end goes after its arguments, so that nobody runs it."""
        close = self._syntax.invoke_close
        position = self._text.find(close)
        if position < 0:
            self._calls.arguments(self._take(len(self._text) - partial_length(self._text, (close,))))
            raise NeedMoreText
        self._calls.arguments(self._take(position))
        self._take(len(close))
        self._calls.interrupt()
        self._block_has_calls = True
        self._state = self._in_block

    def _close(self) -> None:
        if self._state in (self._in_content, self._in_verbatim):
            if self._state == self._in_verbatim or not self._text.lstrip("\n").startswith(self._syntax.stem):
                self._content(self._take(len(self._text)))
        elif find_first(self._calls.raw + self._text, self._syntax.block_closes) is not None:
            self._calls.read(self._text)  # the block was closed, a tag in it was not: malformed, not cut off
            self._calls.fail()
        else:
            self._cut_off()

    def _cut_off(self) -> None:
        """The output ends inside a block. Of a value that is no text, only the whole makes sense."""
        if self._state == self._in_late_failure:
            self._calls.arguments(self._take(len(self._text)))
        elif self._state == self._in_value and self._value_is_string:
            safe = len(self._text) - partial_length(self._text, (self._syntax.parameter_close,))
            self._read_value(safe - self._trailing_newline(safe))
        self._calls.interrupt()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
