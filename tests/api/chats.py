"""Chats with tools and reasoning: what a model writes in each format, and both ways of asking for the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.api.fakes import FakeDispatcher, card, ids
from tests.api.live import LiveServer, chat_body
from tokenmill.core.request import Request

CHAT = "/v1/chat/completions"
#: One call of each format that sets `x`, alone in an output, and how several are joined.
FORMATS: dict[str, Callable[..., str]] = {
    "deepseek_v4": lambda *values: (
        "\n\n<｜DSML｜tool_calls>\n"
        + "\n".join(
            f'<｜DSML｜invoke name="put">\n<｜DSML｜parameter name="x" string="true">{value}</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>"
            for value in values
        )
        + "\n</｜DSML｜tool_calls>"
    ),
    "hermes": lambda *values: "\n".join(
        f'<tool_call>\n{{"name": "put", "arguments": {json.dumps({"x": value})}}}\n</tool_call>' for value in values
    ),
    "llama3_json": lambda *values: "; ".join(
        f'{{"name": "put", "parameters": {json.dumps({"x": value})}}}' for value in values
    ),
    "pythonic": lambda *values: "[" + ", ".join(f"put(x={value!r})" for value in values) + "]",
    "qwen3_coder": lambda *values: "\n".join(
        f"<tool_call>\n<function=put>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
        for value in values
    ),
}
#: Formats whose calls are the whole output.
ALONE = ("llama3_json", "pythonic")


def tool(name: str = "put", parameters: Any = None, **fields: Any) -> dict[str, Any]:
    parameters = parameters or {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def dispatcher(tools: str | None = "hermes", reasoning: str | None = None, **fields: Any) -> FakeDispatcher:
    return FakeDispatcher(card(tool_parser=tools, reasoning_parser=reasoning, **fields))


def says(*outputs: str) -> Callable[[Request], Iterable[int]]:
    """Choice i says outputs[i] (the last one for the rest), then the end-of-sequence id."""
    return lambda request: [*ids(outputs[min(request.choice_index, len(outputs) - 1)]), 0]


def ask(server: LiveServer, text: str = "hi", **fields: Any) -> dict[str, Any]:
    """The answer; asked for as a stream as well, which must add up to the same."""
    body = chat_body(text, **fields)
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert joined(server.stream(CHAT, body)) == [_comparable(choice) for choice in answer["choices"]]
    return answer


def message(server: LiveServer, text: str = "hi", **fields: Any) -> dict[str, Any]:
    (choice,) = ask(server, text, **fields)["choices"]
    made: dict[str, Any] = choice["message"]
    return made


def calls(made: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made["tool_calls"]]


def refusal(server: LiveServer, body: dict[str, Any], path: str = CHAT) -> tuple[str, str]:
    """(code, param) of the 400 that the body gets."""
    response = server.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["code"], error["param"]


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choices out of the chunks of a stream, as clients put them together. No chunk is empty (S42)."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for chunk in event["choices"]:
            choice = choices.setdefault(chunk["index"], {"finish_reason": None, "calls": {}})
            assert choice["finish_reason"] is None, "nothing comes behind the end of a choice"
            choice["finish_reason"] = chunk["finish_reason"]
            delta = chunk["delta"]
            assert delta or chunk["finish_reason"], f"an empty chunk: {chunk}"
            for key in ("content", "reasoning", "reasoning_content"):
                if delta.get(key) is not None:
                    choice[key] = choice.get(key, "") + delta[key]
            for part in delta.get("tool_calls", ()):
                call = choice["calls"].setdefault(part["index"], {"arguments": ""})
                assert ("id" in part) == ("name" in part["function"]) == ("id" not in call), "once, and at the start"
                call.update({key: part[key] for key in ("id", "type") if key in part})
                call["name"] = part["function"].get("name", call.get("name"))
                call["arguments"] += part["function"].get("arguments", "")
    for choice in choices.values():
        choice["calls"] = [(c["type"], c["name"], c["arguments"]) for _, c in sorted(choice["calls"].items())]
    return [choice for _, choice in sorted(choices.items())]


def _comparable(choice: dict[str, Any]) -> dict[str, Any]:
    made = choice["message"]
    functions = [(c["type"], c["function"]["name"], c["function"]["arguments"]) for c in made.get("tool_calls", ())]
    texts = {key: made[key] for key in ("reasoning", "reasoning_content") if key in made}
    return {
        "finish_reason": choice["finish_reason"],
        "calls": functions,
        "content": made["content"] or "",
        **texts,
    }
