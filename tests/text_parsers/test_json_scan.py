"""The scanner agrees with Python's own JSON reader, whole and in pieces."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.text.parsers.json_scan import MAX_DEPTH, JsonScanner
from tokenmill.text.parsers.typed_values import json_value, parse_json

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
_near_json = st.text('{}[]",:0123456789.eE+-truefalsn \\/bxu\n', max_size=30)


def _scan(text: str, size: int) -> tuple[str, bool, bool]:
    """JSON read from pieces of `size`, whether it is one whole value, whether it is wrong."""
    scanner, out = JsonScanner(), ""
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        position, read = scanner.feed(piece)
        out += read
        if position < len(piece):
            return out, False, scanner.error is not None or scanner.is_complete
    return out, scanner.is_complete, scanner.error is not None


@settings(max_examples=100, deadline=None)
@given(_values, st.booleans())
def test_every_value_is_read_whole(value: object, is_ascii: bool) -> None:
    text = json.dumps([value], ensure_ascii=is_ascii)
    assert _scan(text, 1) == _scan(text, len(text)) == (text, True, False)


@settings(max_examples=300, deadline=None)
@given(_near_json)
def test_what_is_accepted_is_json_and_what_is_refused_is_not(text: str) -> None:
    text = "[" + text
    whole, is_complete, is_wrong = _scan(text, len(text))
    assert _scan(text, 1) == (whole, is_complete, is_wrong)
    try:
        json.loads(text, strict=False)
        is_json = True
    except ValueError:
        is_json = False
    if is_json and text == text.rstrip():
        assert is_complete and json.loads(whole) == json.loads(text, strict=False)
    if is_complete:
        assert is_json and not is_wrong


def test_depth_is_limited() -> None:
    assert _scan("[" * MAX_DEPTH + "]" * MAX_DEPTH, 7)[1]
    assert _scan("[" * (MAX_DEPTH + 1), 7)[2]
    assert json_value("[" * 100_000) is None and json_value(" 1 ") == "1" and parse_json("[1]") == [1]
