"""Cache keys: chained over blocks, rooted in everything that changes the bytes, never colliding by spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.kv_hashes import ALGORITHMS, BlockHasher

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=60)


@pytest.fixture(params=sorted(ALGORITHMS))
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_only_full_blocks_are_hashed(algorithm: str) -> None:
    hasher = BlockHasher(4, "w", algorithm=algorithm)
    assert [len(hasher.hash_blocks(list(range(n)))) for n in (0, 3, 4, 5, 8)] == [0, 0, 1, 1, 2]
    assert all(len(digest) == 16 for digest in hasher.hash_blocks(list(range(40))))


@given(tokens=TOKENS, cut=st.integers(0, 60), block_size=st.integers(1, 9))
def test_extending_equals_hashing_at_once(tokens: list[int], cut: int, block_size: int) -> None:
    hasher = BlockHasher(block_size, "w")
    hashes = hasher.hash_blocks(tokens[:cut])
    hasher.extend(hashes, tokens)
    assert hashes == hasher.hash_blocks(tokens)


@given(one=TOKENS, other=TOKENS, block_size=st.integers(1, 5))
def test_hashes_agree_exactly_as_far_as_the_tokens_do(one: list[int], other: list[int], block_size: int) -> None:
    """A digest stands for the whole prefix up to its block, so equal blocks behind different prefixes differ."""
    hasher = BlockHasher(block_size, "w")
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    pairs = list(zip(hasher.hash_blocks(one), hasher.hash_blocks(other), strict=False))
    assert [a == b for a, b in pairs] == [i < common // block_size for i in range(len(pairs))]


@pytest.mark.parametrize(
    ("name", "digest"), [("xxh3", "29f24f9825d05bb35f8af0eb6eab3f8b"), ("sha256", "1b7fb19a50d34548392633eaa97840fd")]
)
def test_digests_stay_what_they_are(name: str, digest: str) -> None:
    """Processes, hosts and releases share keys: a change of the layout must be meant."""
    assert BlockHasher(2, "w", algorithm=name).hash_blocks([1, 2])[0].hex() == digest


#: Pairs that a key made by joining strings would confuse.
HOSTILE = [
    ({"adapter": "x"}, {"salt": "x"}),
    ({"adapter": "x", "salt": "y"}, {"adapter": "y", "salt": "x"}),
    ({"adapter": "a:salt=b"}, {"adapter": "a", "salt": "b"}),
    ({"adapter": "ab"}, {"adapter": "a", "salt": "b"}),
    ({"salt": ""}, {}),
    ({"adapter": ""}, {}),
    ({"salt": "None"}, {}),
    ({"adapter": "None"}, {}),
    ({"salt": "adapter"}, {"adapter": "salt"}),
    ({"salt": "\x00"}, {"salt": ""}),
]


@pytest.mark.parametrize(("one", "other"), HOSTILE)
def test_tags_never_collide(one: dict[str, str], other: dict[str, str], algorithm: str) -> None:
    """S75: requests that differ in adapter or salt share no block, even with hostile strings."""
    hashes = [BlockHasher(2, "w", algorithm=algorithm, **kwargs).hash_blocks([1, 2, 3, 4]) for kwargs in (one, other)]
    assert not set(hashes[0]) & set(hashes[1])


FIELD = st.one_of(st.none(), st.text(max_size=6))


@given(
    one=st.tuples(st.text(max_size=6), FIELD, FIELD, st.integers(1, 4)),
    other=st.tuples(st.text(max_size=6), FIELD, FIELD, st.integers(1, 4)),
)
def test_roots_are_equal_only_for_equal_fields(
    one: tuple[str, str | None, str | None, int], other: tuple[str, str | None, str | None, int]
) -> None:
    """S75, S74: weights version, adapter, salt and block size each separate the keys."""
    roots = [
        BlockHasher(block_size, weights, adapter=adapter, salt=salt).root
        for weights, adapter, salt, block_size in (one, other)
    ]
    assert (roots[0] == roots[1]) == (one == other)


def test_new_weights_never_meet_old_blocks(algorithm: str) -> None:
    """S74: after a weight swap nothing cached under the old version matches."""
    old, new = (BlockHasher(2, version, algorithm=algorithm).hash_blocks([1, 2, 3, 4]) for version in ("v1", "v2"))
    assert not set(old) & set(new)


def test_algorithms_differ() -> None:
    assert BlockHasher(2, "w", algorithm="xxh3").root != BlockHasher(2, "w", algorithm="sha256").root
