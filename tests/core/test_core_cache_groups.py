"""Window arithmetic of cache groups against its definition, token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.cache_groups import CacheGroup, GroupKind, bytes_per_token


def group(window_tokens: int | None, bytes_per_block: int = 64) -> CacheGroup:
    kind = GroupKind.FULL if window_tokens is None else GroupKind.SLIDING_WINDOW
    return CacheGroup("g", kind, bytes_per_block, window_tokens=window_tokens)


@given(num_tokens=st.integers(0, 1000), block_size=st.integers(1, 130))
def test_a_full_group_needs_every_block(num_tokens: int, block_size: int) -> None:
    assert group(None).first_needed_block(num_tokens, block_size) == 0


@given(num_tokens=st.integers(0, 300), window=st.integers(0, 300), block_size=st.integers(1, 40))
def test_a_window_needs_the_block_of_its_oldest_token(num_tokens: int, window: int, block_size: int) -> None:
    """The next token is at position t = num_tokens; it reads positions t - window .. t - 1."""
    first = group(window).first_needed_block(num_tokens, block_size)
    read = range(max(0, num_tokens - window), num_tokens)
    if read:
        assert first == read[0] // block_size
    else:
        assert first * block_size <= num_tokens < (first + 1) * block_size


@pytest.mark.parametrize(
    ("num_tokens", "window", "first"),
    [(0, 128, 0), (128, 128, 0), (143, 128, 0), (144, 128, 1), (256, 1, 15), (257, 1, 16), (256, 0, 16)],
)
def test_edges(num_tokens: int, window: int, first: int) -> None:
    assert group(window).first_needed_block(num_tokens, block_size=16) == first


def test_only_groups_without_a_window_grow() -> None:
    groups = [group(None, 1600), group(128, 10**6), group(None, 16)]
    assert bytes_per_token(groups, block_size=16) == 101
    assert bytes_per_token([group(128)], block_size=16) == 0
    assert bytes_per_token([], block_size=16) == 0


def test_defaults_are_a_plain_required_group() -> None:
    plain = CacheGroup("g", GroupKind.FULL, 1)
    assert (plain.window_tokens, plain.lookahead_tokens, plain.is_required) == (None, 0, True)
