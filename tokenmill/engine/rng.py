"""Counter-based random draws: a draw is a pure function of its key, so there is no state to roll back or migrate."""

from __future__ import annotations

import struct
from enum import IntEnum

import xxhash


class Stream(IntEnum):
    """Purposes of draws: numbers of different streams are independent."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2


_KEY = struct.Struct("<qqqq")


def uniform(seed: int, position: int, row: int, stream: Stream = Stream.TOKEN) -> float:
    """A number in [0, 1) with 53 random bits, keyed by request seed, output position, choice and purpose."""
    return (xxhash.xxh3_64_intdigest(_KEY.pack(seed, position, row, stream)) >> 11) / 2**53
