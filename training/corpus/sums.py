"""Arithmetic as lines and as small word problems, with the steps written out. Correct by construction."""

from __future__ import annotations

from random import Random

from training.corpus.words import FOODS, NAMES


def sums(rng: Random) -> str:
    return "\n".join(line(rng) for _ in range(rng.randint(6, 16)))


def line(rng: Random) -> str:
    a, b = rng.randint(0, 10 ** rng.randint(1, 2)), rng.randint(0, 10 ** rng.randint(1, 2))
    kind = rng.randrange(4)
    if kind == 0:
        return f"{a} + {b} = {a + b}"
    if kind == 1:
        return f"{max(a, b)} - {min(a, b)} = {max(a, b) - min(a, b)}"
    if kind == 2:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        return f"{a} * {b} = {a * b}"
    return f"{a} {'<' if a < b else '>' if a > b else '='} {b}"


def problem(rng: Random) -> tuple[str, str, str]:
    """(question, the steps, answer)."""
    name, other = rng.sample(NAMES, 2)
    food, a, b = rng.choice(FOODS), rng.randint(2, 60), rng.randint(2, 39)
    kind = rng.randrange(4)
    if kind == 0:
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", f"{a} + {b} is {a + b}."
    if kind == 1:
        a += b
        return f"What is {a} - {b}?", f"{a} - {b} = {a - b}.", f"{a} - {b} is {a - b}."
    if kind == 2:
        question = f"{name} has {a} pieces of {food} and gets {b} more from {other}. How many does {name} have now?"
        return question, f"{name} starts with {a} and gets {b}: {a} + {b} = {a + b}.", f"{name} has {a + b} now."
    a += b
    question = f"{name} had {a} pieces of {food} and gave {b} of them to {other}. How many are left?"
    return question, f"{a} - {b} = {a - b}.", f"{a - b} are left."
