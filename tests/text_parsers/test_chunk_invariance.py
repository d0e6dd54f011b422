"""However an output is cut into pieces, the merged events are the same; cut off, it is a valid part (S44, S45, S46)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text_parsers.helpers import FORMATS, FORMATS_BY_NAME, Format, cut, dsml_block, parse, pieces_of, words
from tokenmill.text.parsers.json_scan import JsonScanner

_QUICK = settings(max_examples=40, deadline=None)
each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
_cuts = st.lists(st.integers(0, 600), max_size=8)


@each_format
@_QUICK
@given(data=st.data())
def test_well_formed_output_is_parsed_the_same_however_cut(format: Format, data: st.DataObject) -> None:
    """S44, S45: any cut, and piece sizes 1, 2, 3 and whole, give the names, arguments and types that were written."""
    output = data.draw(format.outputs)
    assert parse(format.make, [output.text]) == output.message
    assert parse(format.make, cut(output.text, data.draw(_cuts))) == output.message
    for size in (1, 2, 3):
        assert parse(format.make, pieces_of(output.text, size)) == output.message


@each_format
@_QUICK
@given(data=st.data())
def test_nearly_markup_is_parsed_the_same_however_cut(format: Format, data: st.DataObject) -> None:
    """S47: malformed markup too; whatever comes out, it does not depend on the pieces."""
    text = "".join(data.draw(st.lists(st.sampled_from(format.markup) | words, max_size=14)))
    whole = parse(format.make, [text])
    assert parse(format.make, pieces_of(text, 1)) == whole
    assert parse(format.make, cut(text, data.draw(_cuts))) == whole


@each_format
@_QUICK
@given(data=st.data())
def test_long_nearly_markup_is_parsed_the_same_however_cut(format: Format, data: st.DataObject) -> None:
    """Calls too long to be held go out early; where that happens depends on the text alone."""
    bits = data.draw(st.lists(st.sampled_from(format.markup) | words, max_size=10))
    place = data.draw(st.integers(0, len(bits)))
    text = "".join([*bits[:place], "x" * data.draw(st.integers(380, 560)), *bits[place:]])
    whole = parse(format.make, [text])
    assert parse(format.make, pieces_of(text, 1)) == whole
    assert parse(format.make, cut(text, data.draw(st.lists(st.integers(0, 900), max_size=8)))) == whole


@each_format
@_QUICK
@given(data=st.data())
def test_output_cut_off_anywhere_is_a_valid_part(format: Format, data: st.DataObject) -> None:
    """S48: what comes of the first n characters is a part of the whole, with arguments that begin a JSON object."""
    output = data.draw(format.outputs)
    part = parse(format.make, [output.text[: data.draw(st.integers(0, len(output.text)))]])
    whole = output.message
    assert whole.reasoning.startswith(part.reasoning.rstrip("</think").rstrip("<｜DSML"))
    assert len(part.tool_calls) <= len(whole.tool_calls)
    for mine, full in zip(part.tool_calls, whole.tool_calls, strict=False):
        assert (mine.id, mine.name) == (full.id, full.name)
        assert full.arguments.startswith(mine.arguments)
        assert not mine.is_complete or mine == full
        scanner = JsonScanner()
        scanner.feed(mine.arguments)
        assert scanner.error is None


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json", "pythonic"])
@_QUICK
@given(data=st.data())
def test_text_without_calls_comes_back_verbatim(name: str, data: st.DataObject) -> None:
    """S47: all of it, once; only a call that was cut off before anything is known of it is left out."""
    format = FORMATS_BY_NAME[name]
    text = "".join(data.draw(st.lists(st.sampled_from(format.markup) | words, max_size=10)))
    message = parse(format.make, pieces_of(text, 3))
    if not message.tool_calls:
        rest = text.removeprefix(message.content)
        assert message.content + rest == text
        assert rest == "" or rest.lstrip("\n").startswith("<tool_call>")


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_boundary_between_reasoning_and_call_loses_nothing(size: int) -> None:
    """S46: the end of thinking and the start of a call in one piece, or cut anywhere."""
    format = FORMATS_BY_NAME["deepseek_v4"]
    text = "last words</think>\n\n" + dsml_block([("f", {})])
    message = parse(format.make, pieces_of(text, size))
    assert (message.reasoning, message.content) == ("last words", "")
    assert [(c.name, c.arguments, c.is_complete) for c in message.tool_calls] == [("f", "{}", True)]
