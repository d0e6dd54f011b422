"""A passage, something else, then the passage again: copying over a distance. Lines of names, words and numbers."""

from __future__ import annotations

from random import Random

from training.corpus.code import functions
from training.corpus.stories import story
from training.corpus.words import ANIMALS, CITIES, COLOURS, JOBS, NAMES, THINGS

WORDS = NAMES + ANIMALS + CITIES + COLOURS + JOBS + THINGS


def passage(rng: Random) -> str:
    """Hardly predictable, so that whoever gets it right has copied."""
    kind = rng.randrange(4)
    if kind == 0:
        return " ".join(rng.sample(WORDS, rng.randint(10, 30)))
    if kind == 1:
        return "\n".join(f"{rng.choice(WORDS)}: {rng.randint(0, 9999)}" for _ in range(rng.randint(5, 14)))
    if kind == 2:
        return rng.choice(functions())
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789 ") for _ in range(rng.randint(20, 60)))


def filler(rng: Random, num_chars: int) -> str:
    """Other text of about so many characters."""
    parts: list[str] = []
    while (left := num_chars - sum(map(len, parts))) > 0:
        parts.append((story(rng) if rng.random() < 0.5 else rng.choice(functions()))[:left])
    return "\n\n".join(parts)


def copy_task(rng: Random, num_filler_chars: int | None = None) -> str:
    text = passage(rng)
    if num_filler_chars is None:
        num_filler_chars = int(1500 * rng.random() ** 4)
    between = filler(rng, num_filler_chars)
    return f"Text:\n{text}\nEnd of text.\n{between}\nThe text again:\n{text}\nEnd of text.\n"
