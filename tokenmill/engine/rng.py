"""Counter-based random draws: a draw is a pure function of its key, so there is no state to roll back or migrate."""

from __future__ import annotations

import struct

import xxhash

_KEY = struct.Struct("<qqqq")


def uniform(seed: int, position: int, row: int, stream: int = 0) -> float:
    """A number in [0, 1) with 53 random bits, keyed by request seed, output position, choice and purpose."""
    return (xxhash.xxh3_64_intdigest(_KEY.pack(seed, position, row, stream)) >> 11) / 2**53
