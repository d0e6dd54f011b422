"""Cache keys: 128-bit digests chained over blocks of tokens, rooted in everything that changes the KV bytes.

Keys are digests of *tagged* fields, never of joined strings, so that an adapter called like a salt can not
share a block with it (bug cases S75, S74). Not responsible for: who holds which block.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import msgspec
import xxhash

_ENCODE = msgspec.msgpack.Encoder().encode


def _xxh3(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


#: xxh3 is quick but collisions can be constructed; sha256 is for caches that tenants share.
ALGORITHMS = {"xxh3": _xxh3, "sha256": _sha256}


class BlockHasher:
    """Hashes the full blocks of one sequence family (same weights, adapter, salt).

    weights_version  digest of checkpoint and of every setting that changes KV bytes (dtype, quantisation)
    adapter          digest of adapter content, None for the base model
    salt             tenant or request salt; different salts never share blocks
    """

    def __init__(
        self,
        block_size: int,
        weights_version: str,
        *,
        adapter: str | None = None,
        salt: str | None = None,
        algorithm: str = "xxh3",
    ) -> None:
        self._digest = ALGORITHMS[algorithm]
        self.block_size = block_size
        self.root = self._digest(
            _ENCODE(("root", block_size, ("weights", weights_version), ("adapter", adapter), ("salt", salt)))
        )

    def extend(self, hashes: list[bytes], token_ids: Sequence[int]) -> None:
        """Append to `hashes` the digest of every full block of `token_ids` that it does not hold yet."""
        size = self.block_size
        if (len(hashes) + 1) * size > len(token_ids):
            return
        parent = hashes[-1] if hashes else self.root
        for start in range(len(hashes) * size, len(token_ids) - size + 1, size):
            block = array("i", token_ids[start : start + size]).tobytes()
            parent = self._digest(parent + block)
            hashes.append(parent)

    def hash_blocks(self, token_ids: Sequence[int]) -> list[bytes]:
        """Digests of the full blocks of `token_ids`, in order."""
        hashes: list[bytes] = []
        self.extend(hashes, token_ids)
        return hashes
