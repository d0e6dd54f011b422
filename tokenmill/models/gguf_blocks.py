"""De-quantises the plain GGUF block types in few passes over whole arrays; the package's own code takes 16 rows a call.

Layouts: ggml-org/ggml, src/ggml-common.h (block_q4_0, block_q4_1, block_q8_0). Torch-free. Not responsible for: the
other types, for which weights_gguf asks the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_BLOCK = 32  # values per block of all types here


def _scale(blocks: np.ndarray, first: int = 0) -> np.ndarray:
    """[B, 1] float32 of the half-precision number at byte `first` of each block."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view(np.float16).astype(np.float32)


def _nibbles(codes: np.ndarray, out: np.ndarray) -> None:
    """Low halves of 16 bytes are values 0..15, high halves 16..31."""
    np.bitwise_and(codes, 15, out=out[:, :16], casting="unsafe")
    np.right_shift(codes, 4, out=out[:, 16:], casting="unsafe")


def _q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _scale(blocks), out=out)


def _q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _scale(blocks)


def _q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _scale(blocks)
    out += _scale(blocks, 2)


#: ggml's name of the type -> (blocks [B, bytes] uint8, out [B, 32] float32) filler
QUICK: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}


def dequantise_quick(kind: str, rows: np.ndarray, out: np.ndarray) -> bool:
    """Fill out [R, n] float32 from rows [R, bytes] uint8; False when the type is none of these."""
    fill = QUICK.get(kind)
    if fill is None:
        return False
    num_blocks = out.size // _BLOCK
    fill(rows.reshape(num_blocks, -1), out.reshape(num_blocks, _BLOCK))
    return True
