"""An OpenAI-like server on a free port that answers without a model, and can be told to misbehave."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.workloads.lengths import Fixed
from tokenmill.workloads.synthetic import synthetic_workload

TEMPLATE_TOKENS = 7


@dataclass
class FakeOpenAI:
    """
    fails      fails(n) -> True: the n-th generating request (from 0) gets a 429
    cuts       cuts(n) -> True: its stream ends in the middle
    tokens_per_word, delay_s, cost, metrics: how it counts, how slow it is, what it adds
    cached     cached(body) -> tokens that it says came from its cache
    has_usage  False: it sends none
    """

    fails: Callable[[int], bool] = lambda n: False
    cuts: Callable[[int], bool] = lambda n: False
    tokens_per_word: float = 1.0
    delay_s: float = 0.0
    cost: dict[str, Any] | None = None
    metrics: str = ""
    cached: Callable[[dict[str, Any]], int] = lambda body: 0
    has_usage: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    num_in_flight: int = 0
    max_in_flight: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "max_model_len": 4096}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics) if self.metrics else web.Response(status=404)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.fails(number):
            error = {"message": "full", "type": "overloaded_error", "param": None, "code": "overloaded"}
            return web.json_response({"error": error}, status=429)
        self.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        try:
            return await self._stream(request, body, self.cuts(number))
        finally:
            self.num_in_flight -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any], is_cut: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        num_tokens = body["max_tokens"]
        for index in range(num_tokens // 2 if is_cut else num_tokens):
            await asyncio.sleep(self.delay_s)
            reason = "length" if index == num_tokens - 1 else None
            await self._send(response, {"choices": [self._choice(body, "x", reason)]})
        if not is_cut:
            if self.has_usage:
                await self._send(response, {"choices": [], "usage": self._usage(body)})
            await response.write(b"data: [DONE]\n\n")
        return response

    def _choice(self, body: dict[str, Any], text: str, reason: str | None) -> dict[str, Any]:
        output = {"delta": {"content": text}} if "messages" in body else {"text": text}
        return {"index": 0, "finish_reason": reason, **output}

    def count(self, body: dict[str, Any]) -> int:
        if "messages" in body:
            return TEMPLATE_TOKENS + self._words(" ".join(message["content"] for message in body["messages"]))
        return len(body["prompt"]) if isinstance(body["prompt"], list) else self._words(body["prompt"])

    def _words(self, text: str) -> int:
        return round(self.tokens_per_word * len(text.split()))

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": self.count(body), "completion_tokens": body["max_tokens"]}
        usage["prompt_tokens_details"] = {"cached_tokens": self.cached(body)}
        return usage | ({"cost": self.cost} if self.cost else {})

    async def _send(self, response: web.StreamResponse, value: object) -> None:
        await response.write(f"data: {json.dumps(value)}\n\n".encode())


@asynccontextmanager
async def serving(fake: FakeOpenAI) -> AsyncIterator[str]:
    server = TestServer(fake.app())
    await server.start_server()
    try:
        yield f"http://{server.host}:{server.port}"
    finally:
        await server.close()


@pytest.fixture
def fake() -> FakeOpenAI:
    return FakeOpenAI()


LOAD_KEYS = {field.name for field in fields(LoadSettings)}


def load_settings(**settings: Any) -> LoadSettings:
    """Flat settings, with isl, osl and num_shared in place of a workload, and request_rate for one rate."""
    lengths = settings.pop("isl", 40), settings.pop("osl", 5)
    num_shared = settings.pop("num_shared", 0)
    if "trace" not in settings and "workload" not in settings:
        isl, osl = (Fixed(value) if isinstance(value, int) else value for value in lengths)
        settings["workload"] = synthetic_workload(isl, osl, num_shared=num_shared)
    if rate := settings.pop("request_rate", None):
        settings["rates_per_s"] = (rate,)
    if "num_prompts" in settings:
        settings["num_requests"] = settings.pop("num_prompts")
    return LoadSettings(**settings)


def serve_bench(url: str, **settings: Any) -> ServeBench:
    keys = LOAD_KEYS | {"isl", "osl", "num_shared", "request_rate", "num_prompts"}
    load = load_settings(**{key: value for key, value in settings.items() if key in keys})
    return ServeBench(url=url, load=load, **{key: value for key, value in settings.items() if key not in keys})


@pytest.fixture
def run_bench(fake: FakeOpenAI) -> Callable[..., dict[str, Any]]:
    """run_bench(**settings) -> result of a serve bench against `fake`."""

    def run(**settings: Any) -> dict[str, Any]:
        async def main() -> dict[str, Any]:
            async with serving(fake) as url:
                return await run_serve_bench(serve_bench(url, **settings), lambda done, total: None)

        return asyncio.run(main())

    return run
