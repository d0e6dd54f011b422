"""Write the questions of `tokenmill bench quality`: held-out documents, prompts, tool calls, passages to copy.

    python -m training.held_out tokenmill/bench/quality_set.json

Real text is named, not stored: files of Python's library that training left out. Transcripts work on code of this
repository, which training never saw.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from tokenmill.text.encodings.deepseek_v4_format import ASSISTANT, BOS, END_THINK, THINK
from training.corpus import code
from training.corpus.agents import transcript
from training.corpus.chats import chat, tool_chat
from training.corpus.copies import WORDS
from training.corpus.records import records
from training.corpus.stories import story
from training.corpus.sums import sums
from training.corpus.tools import TOOLS

NUM_TEXTS, NUM_CALLS, NUM_PASSAGES = 12, 120, 12
#: Of a plain text, how much is given before the model goes on.
PROMPT_CHARS = {"stories": 150, "sums": 60, "records": 200}


def build() -> dict[str, Any]:
    rng = Random("quality")
    sources = [
        f for path in sorted(Path("tokenmill").rglob("*.py")) for f in code.functions_of(path.read_text("utf-8"))
    ]
    chats = {"chat": chat, "tools": tool_chat, "agents": lambda r: transcript(r, 1, sources)}
    plain = {"stories": story, "sums": sums, "records": records}
    texts = {name: [BOS + make(rng) for _ in range(NUM_TEXTS)] for name, make in plain.items()}
    texts |= {name: [make(rng) for _ in range(NUM_TEXTS)] for name, make in chats.items()}
    prompts = {name: [text[: len(BOS) + chars] for text in texts[name]] for name, chars in PROMPT_CHARS.items()}
    # An agent's second turn writes a file back; other conversations are continued from their first.
    prompts |= {name: [_up_to_answer(text, 2 if name == "agents" else 1) for text in texts[name]] for name in chats}
    return {
        "hard_domain": "code",
        "library_files": sorted(code.held_out_files()),
        "texts": texts,
        "prompts": prompts,
        "tools": [tool.schema() for tool in TOOLS],
        "tool_calls": [_call(rng, i) for i in range(NUM_CALLS)],
        "passages": [" ".join(rng.sample(WORDS, 24)) for _ in range(NUM_PASSAGES)],
        "filler": "\n\n".join(story(rng) for _ in range(60)),
    }


def _up_to_answer(text: str, number: int) -> str:
    """Up to where the assistant's turn of that number begins."""
    at = -1
    for _ in range(number):
        at = text.index(ASSISTANT, at + 1)
    at += len(ASSISTANT)
    return text[:at] + (THINK if text[at:].startswith(THINK) else END_THINK)


def _call(rng: Random, i: int) -> dict[str, Any]:
    tool = rng.choice(TOOLS)
    task = tool.make(rng)
    return {"tool": tool.name, "request": task.request, "arguments": task.arguments, "thinking": i % 2 == 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    path.write_text(json.dumps(build(), ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
