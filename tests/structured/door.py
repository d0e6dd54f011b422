"""An engine behind the HTTP door, in this process: real worker loop, real dispatcher, no port. Not tests themselves."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import httpx

from tokenmill.api.app import create_app
from tokenmill.api.config import ApiConfig
from tokenmill.cost.rates import DeviceRate
from tokenmill.engine.engine import Engine
from tokenmill.operations.addresses import frontend_endpoint
from tokenmill.operations.child import remove_run_dir
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatcher import Dispatcher
from tokenmill.operations.in_process import WORKER_ID, InProcessWorker
from tokenmill.operations.serve import make_run_dir

CHAT = "/v1/chat/completions"
_RATE = DeviceRate(usd_per_hour=3.6, watts=100.0, source="test")


class EngineDoor:
    """`with EngineDoor(engine) as door: door.post(path, body)`; any thread may post."""

    def __init__(self, engine: Engine, config: ApiConfig | None = None) -> None:
        self.engine = engine
        self._config = config or ApiConfig()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._run_dir = make_run_dir()
        self._is_over = asyncio.Event()
        self._client: httpx.AsyncClient | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        is_ready = threading.Event()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(is_ready), self._loop)
        while not is_ready.wait(0.1):
            assert not self._serving.done(), self._serving.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._serving.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        remove_run_dir(self._run_dir)

    async def _serve(self, is_ready: threading.Event) -> None:
        operations = OperationsConfig()
        expected = {WORKER_ID: self.engine.card.name}
        dispatcher = Dispatcher(frontend_endpoint(self._run_dir), operations, rate=_RATE, expected=expected)
        async with dispatcher:
            with InProcessWorker(self.engine, self._run_dir, operations, started_s=time.monotonic()) as worker:
                while not dispatcher.cards():
                    worker.check()
                    await asyncio.sleep(0.01)
                app = create_app(dispatcher, self._config, rate=_RATE)
                transport = httpx.ASGITransport(app=app)
                async with httpx.AsyncClient(transport=transport, base_url="http://door", timeout=60) as client:
                    self._client = client
                    is_ready.set()
                    await self._is_over.wait()
                worker.check()
                app.state.context.models.close()

    def _run(self, work: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        assert self._client is not None
        return self._run(self._client.post(path, json=body, **more))

    def post_all(self, path: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
        """All at once."""
        with ThreadPoolExecutor(len(bodies)) as threads:
            return list(threads.map(lambda body: self.post(path, body), bodies))

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        response = self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        events = [block.removeprefix("data: ") for block in response.text.split("\n\n") if block.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 300, "seed": 7, **fields}
