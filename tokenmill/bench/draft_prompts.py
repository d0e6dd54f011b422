"""Prompts on which drafting is measured: real text, as acceptance on random tokens says nothing.

code-edit: a file of the standard library and an instruction, answered by the file once more; domains: the prompts of
bench/quality_set. Not responsible for: sending them (speculation).
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tokenmill.bench.quality_set import QualitySet
from tokenmill.core.errors import ConfigError
from tokenmill.text.tokenizer import Tokenizer

KINDS = ("code-edit", "domains")
_FILES = ("bisect.py", "heapq.py", "textwrap.py", "shlex.py", "queue.py", "sched.py", "fnmatch.py", "stat.py")
_INSTRUCTION = "\n\nThe same file again, with the license comment added at its end:\n\n```python\n"


def draft_prompts(kind: str, tokenizer: Tokenizer, num_prompts: int, isl: int) -> list[list[int]]:
    """`num_prompts` different prompts; isl: tokens of the file in each (code-edit)."""
    if kind == "domains":
        prompts = QualitySet.load(tokenizer).prompts
        by_turn = [ids for row in zip(*prompts.values(), strict=False) for ids in row]
        return [by_turn[i % len(by_turn)] for i in range(num_prompts)]
    if kind != "code-edit":
        raise ConfigError(f"prompts {kind!r} are unknown: possible: {', '.join(KINDS)}")
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [(folder / name).read_text("utf-8") for name in _FILES]
    return [_code_edit(texts[i % len(texts)], i // len(texts), tokenizer, isl) for i in range(num_prompts)]


def _code_edit(text: str, part: int, tokenizer: Tokenizer, isl: int) -> list[int]:
    """The part-th piece of `isl` tokens of a file, asked for again from its first line on."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    start = part * isl % max(1, len(ids) - isl)
    piece = tokenizer.decode(ids[start : start + isl])
    first_line = piece.strip().splitlines()[0]
    return tokenizer.encode(f"```python\n{piece.strip()}\n```{_INSTRUCTION}{first_line}\n")
