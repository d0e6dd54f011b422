"""Python's own library as it is installed: which files train, which are held out, pieces of them for other generators.

Not responsible for: a fixed text. Another version of Python has another library; the card names the one used.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from functools import cache
from pathlib import Path
from random import Random

#: Folders that are tests, tables or not Python's own.
_SKIPPED = {
    "site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3", "encodings", "pydoc_data",
    "turtledemo", "ensurepip", "msilib",
}  # fmt: skip
_MAX_BYTES = 200_000
#: One file of so many is held out, by the hash of its path: the same files on every machine.
_HELD_OUT_ONE_IN = 20


def library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def is_held_out(relative: str) -> bool:
    return hashlib.sha256(relative.encode()).digest()[0] % _HELD_OUT_ONE_IN == 0


@cache
def files() -> dict[str, str]:
    """Relative path -> text, sorted."""
    root, found = library(), {}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED.isdisjoint(relative.parts) and 400 < path.stat().st_size < _MAX_BYTES:
            try:
                found[relative.as_posix()] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return found


def training_files() -> dict[str, str]:
    return {name: text for name, text in files().items() if not is_held_out(name)}


def held_out_files() -> dict[str, str]:
    return {name: text for name, text in files().items() if is_held_out(name)}


@cache
def manual() -> tuple[str, ...]:
    """Sections of the language reference that pydoc carries."""
    from pydoc_data import topics

    return tuple(topics.topics.values())


@cache
def functions() -> tuple[str, ...]:
    """Of the training files."""
    return tuple(function for text in training_files().values() for function in functions_of(text))


def functions_of(text: str) -> list[str]:
    """Functions and methods of a module, 6 to 40 lines, dedented."""
    lines, found = text.splitlines(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno and 6 <= node.end_lineno - node.lineno <= 40:
            indent = node.col_offset
            body = [line[indent:] for line in lines[node.lineno - 1 : node.end_lineno]]
            found.append("\n".join(body))
    return found


def edited(rng: Random, text: str) -> tuple[str, str, str]:
    """(old line, new line, the text with it replaced): a name renamed, a number changed, or a line added."""
    lines = text.splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if line.strip() and i > 0] or [0])
    old = lines[at]
    words = [word for word in old.replace("(", " ").replace(")", " ").replace(".", " ").split() if word.isidentifier()]
    if words and rng.random() < 0.7:
        word = rng.choice(words)
        new = old.replace(word, word + rng.choice(("_", "2", "_new", "_old")), 1)
    else:
        new = old + rng.choice(("  # checked", "  # see above", "  # TODO"))
    return old, new, "\n".join([*lines[:at], new, *lines[at + 1 :]])
