"""Reading the named events of a stream, and outputs for a scripted model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.api.fakes import ids
from tests.api.live import LiveServer
from tokenmill.core.request import Request

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Öl", "days": 3}}\n</tool_call>'
ARGUMENTS = {"city": "Öl", "days": 3}
THOUGHT = "<think>Let me see: 1 < 2.</think>"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def says(text: str) -> Callable[[Request], Iterable[int]]:
    """A script: this text, then the end."""
    return lambda request: [*ids(text), 0]


def named_events(server: LiveServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Each event's data, whose type must be the event's name."""
    response = server.post(path, body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events
