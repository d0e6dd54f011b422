"""Sizes and durations: decimal and binary units, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError
from tokenmill.core.units import format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        (1024, 1024),
        ("17", 17),
        ("17b", 17),
        ("1k", 1000),
        ("1KiB", 1024),
        ("1.5GiB", 1610612736),
        ("2GB", 2 * 10**9),
        (" 4 gib ", 4 * 2**30),
        ("1TiB", 2**40),
        (".5kb", 500),
        ("2.", 2),
    ],
)
def test_parse_bytes(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(2, 2.0), (0.5, 0.5), ("250ms", 0.25), ("3us", 3e-6), ("1s", 1.0), ("5m", 300.0), ("2min", 120.0), ("1H", 3600.0)],
)
def test_parse_seconds(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.2.3", ".", "1 GiB 2", "5 parsecs", "1e3", "nan", "0x10"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ConfigError, match="write a number with a unit"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "ms", "-1s", "1.2.3s", "5GiB", "inf"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (3 * 2**40, "3.0 TiB")],
)
def test_format_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(st.integers(0, 2**50))
def test_printed_sizes_read_back_within_their_precision(num_bytes: int) -> None:
    back = parse_bytes(format_bytes(num_bytes).replace(" ", ""))
    assert abs(back - num_bytes) <= 0.05 * num_bytes
