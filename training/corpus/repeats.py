"""One line of arbitrary words, names or signs, over and over: the shortest way to learn to copy what stands before."""

from __future__ import annotations

from random import Random

from training.corpus.copies import WORDS

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_SIGNS = "()[]{}=+-*/.,:;<>!?@#%&|'\" "


def repeats(rng: Random) -> str:
    """Two or three groups of a line that comes 2 to 5 times."""
    groups = []
    for _ in range(rng.randint(2, 3)):
        line = _line(rng)
        groups.append("\n".join([line] * rng.randint(2, 5)))
    return "\n\n".join(groups)


def _line(rng: Random) -> str:
    length = rng.randint(4, 24)
    kind = rng.randrange(4)
    if kind == 0:
        return " ".join(rng.sample(WORDS, length))
    if kind == 1:
        return " ".join("".join(rng.choices(_LETTERS, k=rng.randint(1, 5))) for _ in range(length // 2))
    if kind == 2:
        return "".join(rng.choice(WORDS if rng.random() < 0.5 else _SIGNS) for _ in range(length))
    names = ["_".join(rng.sample(WORDS, 2)).lower() for _ in range(1 + length // 6)]
    return ", ".join(f"{name}={rng.randint(0, 99)}" for name in names)
