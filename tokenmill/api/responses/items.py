"""Items of a Responses conversation as chat messages. Pure.

What the assistant did in one go (reasoning, text, calls) is several items here and one message there. Not responsible
for: content parts and roles of messages (the chat path checks them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmill.core.errors import BadRequestError, CapabilityError

Item = dict[str, Any]


@dataclass(slots=True)
class Messages:
    """Chat messages, and where each came from: `messages[i]` -> path of its item."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)

    def add(self, message: dict[str, Any], path: str) -> None:
        self.paths[f"messages[{len(self.messages)}]"] = path
        self.messages.append(message)

    def open_assistant(self, path: str, *, unless: tuple[str, ...]) -> dict[str, Any]:
        """The assistant message that is being put together, or a new one where it already has one of the keys."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or any(key in last for key in unless):
            self.add({"role": "assistant"}, path)
        return self.messages[-1]


def read_input(value: str | list[Any]) -> list[Item]:
    """The items of `input`; a text is one user message."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise BadRequestError(f"input[{i}] must be an object: give it a type or a role", param=f"input[{i}]")
    return value


def to_messages(items: Iterable[tuple[str, Item]]) -> Messages:
    """`items` with their paths, in order, after references were resolved (store.py)."""
    result = Messages()
    for path, item in items:
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise BadRequestError(f"{path} has neither type nor role: give it one", param=path)
        if kind not in _READERS:
            raise CapabilityError(
                f"{path} has type {kind[:60]!r}, which cannot be served: possible are {', '.join(sorted(_READERS))}",
                param=f"{path}.type",
            )
        _READERS[kind](result, path, item)
    return result


def _message(result: Messages, path: str, item: Item) -> None:
    keys: dict[str, Any] = {key: item[key] for key in ("role", "content", "name") if key in item}
    if item.get("role") != "assistant":
        result.add(keys, path)
        return
    message = result.open_assistant(path, unless=("content", "tool_calls"))
    message.update(keys)
    result.paths[f"messages[{len(result.messages) - 1}].content"] = f"{path}.content"


def _function_call(result: Messages, path: str, item: Item) -> None:
    name = _text(item, "name", path)
    function = {"name": name, "arguments": _text(item, "arguments", path)}
    call = {"id": _text(item, "call_id", path), "type": "function", "function": function}
    message = result.open_assistant(path, unless=())
    calls = message.setdefault("tool_calls", [])
    result.paths[f"messages[{len(result.messages) - 1}].tool_calls[{len(calls)}]"] = path
    result.paths[f"messages[{len(result.messages) - 1}].tool_calls[{len(calls)}].function"] = path
    calls.append(call)


def _function_call_output(result: Messages, path: str, item: Item) -> None:
    output = item.get("output")
    if not isinstance(output, str | list):
        raise BadRequestError(f"{path}.output must be a text or a list of parts", param=f"{path}.output")
    result.add({"role": "tool", "tool_call_id": _text(item, "call_id", path), "content": output}, path)
    result.paths[f"messages[{len(result.messages) - 1}].content"] = f"{path}.output"


def _reasoning(result: Messages, path: str, item: Item) -> None:
    """The reasoning itself; where a client kept only its summary, that."""
    for key in ("content", "summary"):
        parts = item.get(key) or []
        if not isinstance(parts, list) or not all(_is_text_part(part) for part in parts):
            raise BadRequestError(f"{path}.{key} must be a list of parts with a text", param=f"{path}.{key}")
    text = "\n".join(part["text"] for part in item.get("content") or item.get("summary") or [])
    if text:
        message = result.open_assistant(path, unless=("content", "tool_calls", "reasoning_content"))
        message["reasoning_content"] = text


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def _text(item: Item, key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise BadRequestError(f"{path}.{key} must be a text", param=f"{path}.{key}")
    return value


_READERS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}
