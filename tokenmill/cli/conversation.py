"""The loop of `tokenmill chat`: read a line, stream the answer, keep the history. Not responsible for: the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tokenmill.bench.http_client import first_model, open_session, read_events
from tokenmill.bench.target import Target
from tokenmill.cli.output import note, print_json
from tokenmill.core.errors import TokenmillError, UnavailableError, from_code


@dataclass(slots=True)
class Conversation:
    """What has been said, and how answers are asked for."""

    system: str | None = None
    max_tokens: int = 512
    temperature: float = 0.7
    messages: list[dict[str, str]] = field(default_factory=list)

    def restart(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def talk(url: str, model: str | None, api_key: str | None, conversation: Conversation, *, as_json: bool) -> None:
    """Until the end of input, an empty line, or /exit."""
    with contextlib.suppress(EOFError):
        asyncio.run(_talk(url, model, api_key, conversation, as_json=as_json))


async def _talk(url: str, model: str | None, api_key: str | None, conversation: Conversation, *, as_json: bool) -> None:
    conversation.restart()
    async with open_session() as session:
        name = model or await first_model(session, url, api_key)
        target = Target(url, name, "chat", api_key)
        while (line := _read_line()) and line != "/exit":
            if line == "/new":
                conversation.restart()
                continue
            conversation.messages.append({"role": "user", "content": line})
            try:
                await _answer(session, target, conversation, as_json=as_json)
            except TokenmillError as error:
                conversation.messages.pop()
                note(f"tokenmill: {error.message}")
                if not sys.stdin.isatty():
                    raise


def _read_line() -> str:
    return input("> " if sys.stdin.isatty() else "").strip()


async def _answer(session: aiohttp.ClientSession, target: Target, conversation: Conversation, *, as_json: bool) -> None:
    """Stream one answer to the terminal and into the history."""
    pieces: list[str] = []
    thoughts: list[str] = []
    usage: dict[str, Any] = {}
    try:
        body = conversation.body(target.model)
        async with session.post(target.address("/v1/chat/completions"), json=body, headers=target.headers) as response:
            if response.status != 200:
                raise _refusal(response.status, await response.text(errors="replace"))
            async for data in read_events(response.content):
                chunk = json.loads(data)
                if "error" in chunk:
                    raise _refusal(200, data)
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices") or ():
                    delta = choice.get("delta") or {}
                    thoughts.append(delta.get("reasoning") or "")
                    pieces.append(delta.get("content") or "")
                    if not as_json:
                        print(_faint(thoughts[-1]) + pieces[-1], end="", flush=True)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnavailableError(
            f"{target.url} does not answer ({type(error).__name__}: {error}): is it running?"
        ) from None
    message = {"content": "".join(pieces)} | ({"reasoning": "".join(thoughts)} if any(thoughts) else {})
    conversation.messages.append({"role": "assistant", **message})
    if as_json:
        print_json({**message, "usage": usage})
    else:
        print()
        note(_cost_line(usage))


def _faint(thought: str) -> str:
    """Reasoning, so that it can be told from the answer."""
    return f"\x1b[2m{thought}\x1b[0m" if thought and sys.stdout.isatty() else thought


def _refusal(status: int, text: str) -> TokenmillError:
    try:
        error = json.loads(text)["error"]
        return from_code(str(error.get("code")), str(error["message"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return UnavailableError(f"the server answered {status}: {text[:200]}")


def _cost_line(usage: dict[str, Any]) -> str:
    cost = usage.get("cost") or {}
    tokens = f"{usage.get('prompt_tokens', '?')} + {usage.get('completion_tokens', '?')} tokens"
    if "usd" not in cost:
        return f"[{tokens}]"
    return f"[{tokens}, ${cost['usd']:.6f}, {cost.get('joules', 0):.2f} J {cost.get('energy_source', '')}]"
