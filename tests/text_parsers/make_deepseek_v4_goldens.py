"""Writes deepseek_v4_goldens.json: our conversations as the vendor's own encoder writes them.

    python tests/text_parsers/make_deepseek_v4_goldens.py path/to/encoding_dsv4.py

The encoder is the file encoding/encoding_dsv4.py (April 2026) of the hub repository deepseek-ai/DeepSeek-V4-Flash.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).with_name("deepseek_v4_goldens.json")


def _call(name: str, arguments: str, call_id: str | None = None) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if call_id is None else {"id": call_id, **call}


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": f"{name}: für Tests", "parameters": parameters},
    }


TOOLS = [_tool("mixer", speed={"type": "integer"}, label={"type": "string"}), _tool("oven", on={"type": "boolean"})]
SYSTEM = {"role": "system", "content": "You bake bread."}
SYSTEM_WITH_TOOLS = {**SYSTEM, "tools": TOOLS}
HELLO = {"role": "user", "content": "Hallo, wie geht's?"}
ANSWER = {"role": "assistant", "reasoning_content": "A greeting.", "content": "Gut 😀"}
RYE = {"role": "user", "content": "How long does rye take?\n"}
RYE_ANSWER = {"role": "assistant", "reasoning_content": "Rye is slow.", "content": "Two days."}
CALLS = {
    "role": "assistant",
    "reasoning_content": "Both at once.",
    "content": "On it.",
    "tool_calls": [
        _call("mixer", '{"speed": 3, "label": "a \\"b\\"\\n", "deep": {"x": [1, null, "ä"]}}', "c1"),
        _call("oven", '{"on": true}', "c2"),
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "c2", "content": "hot"},
    {"role": "tool", "tool_call_id": "c1", "content": '{"done": true}'},
]

#: Stands for the tools section, which is spelled out only in the conversation "tools".
TOOLS_MARK = "(the tools section)"

#: name -> messages in the vendor's own form (tools and response_format stand on a message).
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "hello": [HELLO],
    "system": [SYSTEM, HELLO],
    "two systems": [SYSTEM, {"role": "system", "content": " Be short."}, HELLO],
    "history": [SYSTEM, HELLO, ANSWER, RYE],
    "long history": [HELLO, ANSWER, RYE, RYE_ANSWER, HELLO],
    "tools": [SYSTEM_WITH_TOOLS, HELLO],
    "tools without system": [{"role": "system", "content": "", "tools": TOOLS}, HELLO],
    "tools and history": [SYSTEM_WITH_TOOLS, HELLO, ANSWER, RYE],
    "results": [SYSTEM_WITH_TOOLS, RYE, CALLS, *RESULTS],
    "results, then text": [SYSTEM_WITH_TOOLS, RYE, CALLS, *RESULTS, HELLO],
    "results, undeclared tools": [SYSTEM, RYE, CALLS, *RESULTS],
    "results, answer, text": [SYSTEM_WITH_TOOLS, RYE, CALLS, *RESULTS, RYE_ANSWER, HELLO],
    "call without arguments": [
        SYSTEM_WITH_TOOLS,
        RYE,
        {"role": "assistant", "tool_calls": [_call("oven", "{}", "c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ],
    "call cut off": [
        SYSTEM_WITH_TOOLS,
        RYE,
        {"role": "assistant", "content": None, "tool_calls": [_call("oven", '{"on": tr', "c1")]},
        {"role": "tool", "tool_call_id": "c1", "content": "no such thing"},
    ],
    "call without id": [
        SYSTEM_WITH_TOOLS,
        RYE,
        {"role": "assistant", "tool_calls": [_call("oven", '{"on": false}')]},
        {"role": "tool", "content": "cold"},
    ],
    "two users": [HELLO, RYE],
    "response format": [{**SYSTEM, "response_format": {"type": "object", "title": "Größe"}}, HELLO],
    "tools and response format": [{**SYSTEM_WITH_TOOLS, "response_format": {"type": "array"}}, HELLO],
    "reminder": [SYSTEM, {"role": "latest_reminder", "content": "2026-11-30, Monday"}, HELLO],
    "reminder behind": [SYSTEM, HELLO, {"role": "latest_reminder", "content": "2026-11-30, Monday"}],
    "prefix": [HELLO, {"role": "assistant", "content": "```py\n", "wo_eos": True}],
    "developer": [SYSTEM, {"role": "developer", "content": "Search.", "tools": TOOLS}, CALLS, *RESULTS],
    "old developer": [SYSTEM, {"role": "developer", "content": "Search."}, ANSWER, RYE],
    "task action": [SYSTEM, {**HELLO, "task": "action"}],
    "task action, answered": [SYSTEM, {**HELLO, "task": "action"}, {"role": "assistant", "content": "Answer"}, RYE],
    "task query": [SYSTEM, HELLO, ANSWER, {**RYE, "task": "query"}],
    "task query, text": [{**HELLO, "task": "query"}, RYE],
    "task title": [SYSTEM, HELLO, {**ANSWER, "task": "title"}],
}
EFFORTS = ("tools", "history", "hello")


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("reference_encoder", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(path: str) -> None:
    reference = _load(path)
    goldens = {
        name: {
            mode: reference.encode_messages(messages, thinking_mode=mode, drop_thinking=True)
            for mode in ("thinking", "chat")
        }
        | {"kept": reference.encode_messages(messages, thinking_mode="thinking", drop_thinking=False)}
        for name, messages in CONVERSATIONS.items()
    }
    for name in EFFORTS:
        goldens[name]["max"] = reference.encode_messages(
            CONVERSATIONS[name], thinking_mode="thinking", reasoning_effort="max"
        )
    tools = reference.render_tools([tool["function"] for tool in TOOLS])
    for name, texts in goldens.items():
        if name != "tools":
            goldens[name] = {mode: text.replace(tools, TOOLS_MARK) for mode, text in texts.items()}
    GOLDENS.write_text(json.dumps(goldens, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
