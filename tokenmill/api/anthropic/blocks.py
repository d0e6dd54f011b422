"""Content blocks of an Anthropic conversation as chat messages. Pure.

Turns of one role that follow each other are one turn. What was said in it, what was called and what the calls gave are
blocks there, and here: the text of a message, its tool calls, and messages of the role tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.core.errors import BadRequestError, CapabilityError


@dataclass(slots=True)
class Conversation:
    """
    paths      `messages[i]` -> path of its turn or block
    continues  the last turn is the beginning of the answer
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    continues: bool = False

    def open(self, role: str, path: str) -> dict[str, Any]:
        """The last message where it has this role, else a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.add({"role": role}, path)
        return self.messages[-1]

    def add(self, message: dict[str, Any], path: str) -> None:
        self.paths[f"messages[{len(self.messages)}]"] = path
        self.messages.append(message)


def to_messages(turns: Sequence[tuple[str, Any]]) -> Conversation:
    """`turns`: (role, text or blocks) in order."""
    result = Conversation()
    for i, (role, content) in enumerate(turns):
        path = f"messages[{i}]"
        is_open_end = role == "assistant" and i == len(turns) - 1
        if not content and not is_open_end:
            raise BadRequestError(f"{path}.content is empty: give a text or blocks", param=f"{path}.content")
        if content:
            _read_turn(result, role, content, path)
    last = result.messages[-1] if result.messages else {}
    result.continues = last.get("role") == "assistant" and bool(last.get("content")) and "tool_calls" not in last
    return result


def _read_turn(result: Conversation, role: str, content: Any, path: str) -> None:
    if isinstance(content, str):
        _add_text(result.open(role, path), content)
        return
    for j, block in enumerate(content):
        where = f"{path}.content[{j}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(kind, str):
            raise BadRequestError(f"{where} must be an object with a type", param=where)
        reader = _READERS[role].get(kind)
        if reader is None:
            raise CapabilityError(
                f"{where} has type {kind[:60]!r}: the {role} may send {', '.join(sorted(_READERS[role]))}", param=where
            )
        reader(result, role, block, where)


def block_text(content: Any, path: str) -> str:
    """A text, or the texts of text blocks one below the other."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"{path} must be a text or a list of text blocks", param=path)
    for i, block in enumerate(content):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise BadRequestError(f"{path}[{i}] must be an object with a type", param=f"{path}[{i}]")
        if block["type"] != "text":
            raise CapabilityError(
                f"{path}[{i}] has type {block['type'][:60]!r}: this model reads text; send blocks of type 'text'",
                param=f"{path}[{i}]",
            )
    return "\n".join(_text(block, "text", f"{path}[{i}]") for i, block in enumerate(content))


def _add_text(message: dict[str, Any], text: str) -> None:
    message["content"] = f"{message['content']}\n{text}" if message.get("content") else text


def _read_text(result: Conversation, role: str, block: Mapping[str, Any], path: str) -> None:
    _add_text(result.open(role, path), _text(block, "text", path))


def _read_thinking(result: Conversation, role: str, block: Mapping[str, Any], path: str) -> None:
    message, text = result.open(role, path), _text(block, "thinking", path)
    before = message.get("reasoning_content")
    message["reasoning_content"] = f"{before}\n{text}" if before else text


def _read_tool_use(result: Conversation, role: str, block: Mapping[str, Any], path: str) -> None:
    if not isinstance(block.get("input"), Mapping):
        raise BadRequestError(f"{path}.input must be an object", param=f"{path}.input")
    function = {"name": _text(block, "name", path), "arguments": json.dumps(block["input"], ensure_ascii=False)}
    message = result.open(role, path)
    calls = message.setdefault("tool_calls", [])
    result.paths[f"messages[{len(result.messages) - 1}].tool_calls[{len(calls)}]"] = path
    result.paths[f"messages[{len(result.messages) - 1}].tool_calls[{len(calls)}].function"] = path
    calls.append({"id": _text(block, "id", path), "type": "function", "function": function})


def _read_tool_result(result: Conversation, role: str, block: Mapping[str, Any], path: str) -> None:
    call_id, content = _text(block, "tool_use_id", path), block.get("content")
    text = "" if content is None else block_text(content, f"{path}.content")
    result.add({"role": "tool", "tool_call_id": call_id, "content": text}, path)


def _skip(result: Conversation, role: str, block: Mapping[str, Any], path: str) -> None:
    """Thinking that only its maker can read."""


def _text(block: Mapping[str, Any], key: str, path: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise BadRequestError(f"{path}.{key} must be a text", param=f"{path}.{key}")
    return value


_Reader = Callable[[Conversation, str, Mapping[str, Any], str], None]
_READERS: dict[str, dict[str, _Reader]] = {
    "user": {"text": _read_text, "tool_result": _read_tool_result},
    "system": {"text": _read_text},
    "assistant": {
        "text": _read_text,
        "thinking": _read_thinking,
        "redacted_thinking": _skip,
        "tool_use": _read_tool_use,
    },
}
