"""Which server, model and route a load goes to, and the body of a request. Not responsible for: sending (client)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from tokenmill.core.errors import ConfigError

Prompt = str | list[int] | list[dict[str, str]]
ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """
    url         of the server, with or without /v1
    endpoint    which route to load
    ignore_eos  send this extension (vLLM, tokenmill), so that every answer has the asked length
    """

    url: str
    model: str
    endpoint: Literal["completions", "chat"] = "completions"
    api_key: str | None = None
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {self.url!r} is not an address: write e.g. http://127.0.0.1:8000")

    def address(self, route: str) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + route

    def named(self, model: str) -> Target:
        return replace(self, model=model)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self, prompt: Prompt, osl: int) -> dict[str, Any]:
        """Streaming, greedy, with usage. A prompt of messages goes to chat, a text becomes one user message there."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": osl, "temperature": 0.0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.endpoint == "completions":
            return body | {"prompt": prompt}
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return body | {"messages": messages}
