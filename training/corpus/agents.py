"""Transcripts of a coding agent: one long system prompt that all share, files read, changed, written and tested.

A file that was read comes back whole with one line changed, so most of what the agent writes is copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from training.corpus.chats import Message, render
from training.corpus.code import edited, functions
from training.corpus.words import JOBS, THINGS

_SYSTEM = """You are a coding agent that works in one repository.

Rules:
- Read a file before you change it.
- Change as little as possible, and write the whole file back.
- Run the tests after each change, and tell the user in one sentence what you did.
- Never invent results: everything you say comes from a tool."""


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    properties = {p: {"type": "string"} for p in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("read_file", "Content of a file.", "path"),
    _tool("write_file", "Replace a file.", "path", "content"),
    _tool("run_tests", "Run the tests of a folder.", "folder"),
]


def transcript(rng: Random, num_tasks: int | None = None, sources: Sequence[str] | None = None) -> str:
    """sources: functions to work on; None: those of the training files."""
    sources = functions() if sources is None else sources
    messages: list[Message] = [{"role": "system", "content": _SYSTEM}]
    for _ in range(num_tasks or rng.randint(1, 3)):
        messages += _task(rng, sources)
    return render(messages, TOOLS, thinking=rng.random() < 0.5)


def _task(rng: Random, sources: Sequence[str]) -> list[Message]:
    folder, name = rng.choice(("src", "lib", "app", "core")), f"{rng.choice(THINGS)}_{rng.choice(JOBS)}.py"
    path, text = f"{folder}/{name}", rng.choice(sources)
    old, new, after = edited(rng, text)
    passed = rng.randint(3, 60)
    return [
        {"role": "user", "content": f"In {path} change `{old.strip()}` to `{new.strip()}`."},
        *_call(f"I read {path} first.", "read_file", {"path": path}, text),
        *_call(f"I write {path} back.", "write_file", {"path": path, "content": after}, f"wrote {path}"),
        *_call(f"I test {folder}.", "run_tests", {"folder": folder}, f"{passed} passed"),
        {
            "role": "assistant",
            "content": f"I changed one line of {path}; {passed} tests pass.",
            "reasoning_content": "The tests pass.",
        },
    ]


def _call(thought: str, name: str, arguments: dict[str, str], result: str) -> list[Message]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": thought,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]
