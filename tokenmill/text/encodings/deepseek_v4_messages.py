"""Chat messages as DeepSeek V4's turns: checked, tool results merged into user turns in call order. Pure.

Not responsible for how a turn is written (deepseek_v4_format.py, deepseek_v4.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.text.encodings.deepseek_v4_format import TASKS, json_text, tool_result

ROLES = ("system", "developer", "user", "assistant", "tool", "latest_reminder")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is JSON text as the client sent it."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a user turn: text, or the result of the call `call_id`."""

    text: str
    is_result: bool = False
    call_id: str | None = None

    def render(self) -> str:
        return tool_result(self.text) if self.is_result else self.text


@dataclass(frozen=True, slots=True)
class Turn:
    """
    role           "system", "developer", "user", "assistant" or "latest_reminder"
    path           of the message in the request, for errors
    text           of every role but "user", whose text is in `blocks`
    reasoning      None: the client did not send any
    functions      tools declared on this turn
    schema         of the response format asked for on this turn
    task           a quick-instruction token follows the turn
    is_open        an assistant turn that the answer continues
    """

    role: str
    path: str
    text: str = ""
    blocks: tuple[Block, ...] = ()
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    schema: Any = None
    task: str | None = None
    is_open: bool = False


def read_turns(messages: Any) -> list[Turn]:
    """BadRequestError names the message, and the field, that cannot be written."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadRequestError("messages must be a list with at least one message", param="messages")
    turns: list[Turn] = []
    calls: tuple[Call, ...] | None = None
    for i, message in enumerate(messages):
        turn = _read(message, f"messages[{i}]")
        if turn.role == "assistant":
            calls = turn.calls or None
        _check_results(turn, calls)
        _merge(turns, turn)
    return _sort_results(turns)


def _wrong(path: str, problem: str) -> BadRequestError:
    return BadRequestError(f"{path} {problem}", param=path)


def _read(message: Any, path: str) -> Turn:
    if not isinstance(message, Mapping):
        raise _wrong(path, "must be an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"{path}.role", f"is {role!r}: possible are {', '.join(ROLES)}")
    text = _text(message.get("content"), f"{path}.content")
    turn = Turn(
        role="user" if role == "tool" else role,
        path=path,
        task=_task(message.get("task"), path),
        functions=read_functions(message.get("tools"), f"{path}.tools"),
        schema=read_schema(message.get("response_format"), f"{path}.response_format"),
    )
    if role in ("user", "tool"):
        return replace(turn, blocks=(Block(text, role == "tool", message.get("tool_call_id")),))
    if role == "assistant":
        return _read_assistant(turn, message, text)
    return replace(turn, text=text)


def _read_assistant(turn: Turn, message: Mapping[str, Any], text: str) -> Turn:
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key)), None)
    if reasoning is not None and not isinstance(reasoning, str):
        raise _wrong(f"{turn.path}.reasoning_content", "must be a text")
    return replace(
        turn,
        text=text,
        reasoning=reasoning,
        calls=_read_calls(message.get("tool_calls"), f"{turn.path}.tool_calls"),
        is_open=bool(message.get("prefix") or message.get("wo_eos")),
    )


def _text(content: Any, path: str) -> str:
    """Parts are joined by an empty line, as the format joins the blocks of a user turn."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _wrong(path, "must be a text or a list of parts")
    return "\n\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise _wrong(path, "must be an object with a type")
    if kind not in _TEXT_PARTS:
        raise CapabilityError(f"{path} has type {kind!r}: this model reads text; send parts of type 'text'", param=path)
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise _wrong(path, f"has type {kind!r} but no {_TEXT_PARTS[kind]!r} that is a text")
    return text


def _task(task: Any, path: str) -> str | None:
    if task is not None and task not in TASKS:
        raise _wrong(f"{path}.task", f"is {task!r}: possible are {', '.join(TASKS)}")
    return task


def _read_calls(calls: Any, path: str) -> tuple[Call, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise _wrong(path, "must be a list")
    return tuple(_read_call(call, f"{path}[{i}]") for i, call in enumerate(calls))


def _read_call(call: Any, path: str) -> Call:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _wrong(path, "must be an object with a function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{path}.function.name", "must be the name of a function")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else _json(arguments, f"{path}.function.arguments")
    call_id = call.get("id")
    return Call(name, arguments, call_id if isinstance(call_id, str) and call_id else None)


def _json(value: Any, path: str) -> str:
    try:
        return json_text(value)
    except RecursionError:
        raise _wrong(path, "is nested too deep to write") from None


def read_functions(tools: Any, path: str = "tools") -> tuple[Mapping[str, Any], ...]:
    """The function of each tool; BadRequestError names what is no function with an object schema."""
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise _wrong(path, "must be a list of tools")
    return tuple(_function(tool, f"{path}[{i}]") for i, tool in enumerate(tools))


def _function(tool: Any, path: str) -> Mapping[str, Any]:
    kind = tool.get("type", "function") if isinstance(tool, Mapping) else None
    if kind is None:
        raise _wrong(path, "must be an object with type and function")
    if kind != "function":
        raise CapabilityError(f"{path} has type {kind!r}: this model calls functions only", param=path)
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _wrong(f"{path}.function", "must be an object with a name")
    if not isinstance(function.get("parameters", {}), Mapping):
        raise _wrong(f"{path}.function.parameters", "must be a JSON schema of type object")
    _json(function, f"{path}.function")
    return function


def read_schema(response_format: Any, path: str = "response_format") -> Any:
    """The schema that the prompt shows; None where the format has none (text, json_object)."""
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise _wrong(path, "must be an object with a type")
    kind = response_format.get("type")
    if kind in ("text", "json_object"):
        return None
    inner = response_format.get("json_schema")
    schema = response_format if kind != "json_schema" else inner.get("schema") if isinstance(inner, Mapping) else inner
    if not isinstance(schema, Mapping):
        raise _wrong(f"{path}.json_schema.schema", "must be a JSON schema")
    _json(schema, path)
    return schema


def _check_results(turn: Turn, calls: tuple[Call, ...] | None) -> None:
    """Every tool message answers a call of the last assistant turn."""
    for block in turn.blocks:
        if not block.is_result:
            continue
        if calls is None:
            raise _wrong(turn.path, "is a tool result, but no assistant message with tool_calls comes before it")
        ids = {call.id for call in calls}
        if block.call_id and None not in ids and block.call_id not in ids:
            raise _wrong(f"{turn.path}.tool_call_id", "names no call of the assistant message before it")


def _merge(turns: list[Turn], turn: Turn) -> None:
    """Neighbouring user texts and tool results are one turn; a text starts a new one after a turn with a task."""
    last = turns[-1] if turns else None
    is_joined = last is not None and turn.role == last.role == "user"
    if last is not None and is_joined and (turn.blocks[0].is_result or last.task is None):
        turns[-1] = replace(last, blocks=last.blocks + turn.blocks)
    else:
        turns.append(turn)


def _sort_results(turns: Sequence[Turn]) -> list[Turn]:
    order: dict[str, int] = {}
    result = []
    for turn in turns:
        if turn.calls:
            order = {call.id: i for i, call in enumerate(turn.calls) if call.id is not None}
        results = sorted((b for b in turn.blocks if b.is_result), key=lambda b: order.get(b.call_id or "", 0))
        in_order = iter(results)
        blocks = tuple(next(in_order) if block.is_result else block for block in turn.blocks)
        result.append(replace(turn, blocks=blocks))
    return result
