"""The FastAPI application: routes, the door around them, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import tokenmill
from tokenmill.api import cost_routes, generate_routes, info_routes, token_routes
from tokenmill.api.anthropic import routes as messages
from tokenmill.api.anthropic.types import CountTokensRequest, MessagesRequest
from tokenmill.api.config import ApiConfig
from tokenmill.api.context import ApiContext, Lifecycle
from tokenmill.api.door import Door
from tokenmill.api.errors import MethodNotAllowedError, NoSuchRouteError
from tokenmill.api.live_page.feed import Feed
from tokenmill.api.live_page.routes import LivePage
from tokenmill.api.metrics import FleetCollector
from tokenmill.api.model_service import ModelServices
from tokenmill.api.openai_types import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from tokenmill.api.ports import DispatcherPort
from tokenmill.api.request_metrics import RequestMetrics
from tokenmill.api.responses import routes as responses
from tokenmill.api.responses.store import ResponseStore
from tokenmill.api.responses.types import ResponsesRequest
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import BadRequestError
from tokenmill.cost.rates import DeviceRate

logger = logging.getLogger(__name__)

Handler = Callable[[HttpRequest, ApiContext], Awaitable[Response]]

_POST: dict[str, tuple[Handler, type[BaseModel]]] = {
    "/v1/chat/completions": (generate_routes.chat_completions, ChatRequest),
    "/v1/completions": (generate_routes.completions, CompletionRequest),
    "/v1/responses": (responses.create_response, ResponsesRequest),
    "/v1/messages": (messages.create_message, MessagesRequest),
    "/v1/messages/count_tokens": (messages.count_tokens, CountTokensRequest),
    "/tokenize": (token_routes.tokenize, TokenizeRequest),
    "/detokenize": (token_routes.detokenize, DetokenizeRequest),
}
_GET: dict[str, Handler] = {
    "/v1/models": info_routes.list_models,
    "/v1/models/{model_id:path}": info_routes.get_model,
    "/v1/responses/{response_id}": responses.get_response,
    "/v1/cost": cost_routes.get_cost,
    "/health": info_routes.health,
    "/live": info_routes.live,
    "/ready": info_routes.ready,
    "/version": info_routes.version,
    "/metrics": info_routes.metrics,
}


def create_app(
    dispatcher: DispatcherPort,
    config: ApiConfig | None = None,
    *,
    lifecycle: Lifecycle | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    rate: DeviceRate | None = None,
) -> FastAPI:
    """The HTTP door in front of `dispatcher`; `rate` is what one worker costs. Its context is `app.state.context`."""
    config = config or ApiConfig()
    context = ApiContext(
        dispatcher=dispatcher,
        config=config,
        models=ModelServices(dispatcher, config),
        metrics=RequestMetrics(),
        clock=clock or SystemClock(),
        lifecycle=lifecycle or Lifecycle(),
        rng=rng or random.SystemRandom(),
        responses=ResponseStore(config.responses.max_bytes, config.responses.ttl_s),
    )
    context.metrics.registry.register(FleetCollector(dispatcher, context.clock, rate))
    app = FastAPI(
        title="tokenmill",
        version=tokenmill.__version__,
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,  # the page would fetch its scripts from elsewhere
        redoc_url=None,
    )
    app.state.context = context
    app.state.feed = Feed(dispatcher, context.metrics, context.clock)
    live = LivePage(app.state.feed)
    pages = {"/": live.page, "/assets/{name:path}": live.file, "/live/events": live.events}
    for path, (handler, body) in _POST.items():
        _add(app, path, handler, context, "POST", openapi_extra=_body_schema(body))
    for path, handler in (_GET | pages).items():
        _add(app, path, handler, context, "GET")
    _add(app, "/v1/responses/{response_id}", responses.delete_response, context, "DELETE")
    key = None if config.api_key is None else config.api_key.get_secret_value()
    app.add_middleware(Door, api_key=key, on_error=context.metrics.count_error)
    app.add_exception_handler(HTTPException, _http_exception)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    feeding = asyncio.create_task(app.state.feed.run())
    feeding.add_done_callback(_log_failure)
    try:
        yield
    finally:
        feeding.cancel()
        app.state.context.models.close()


def _log_failure(feeding: asyncio.Task[None]) -> None:
    if not feeding.cancelled() and feeding.exception() is not None:
        logger.error("the live page has no more figures", exc_info=feeding.exception())


def _add(app: FastAPI, path: str, handler: Handler, context: ApiContext, method: str, **extra: Any) -> None:
    """Handlers read and write raw HTTP themselves; FastAPI routes them and describes them in /openapi.json."""

    async def endpoint(request: HttpRequest) -> Response:
        return await handler(request, context)

    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        name=handler.__name__,
        response_model=None,
        description=handler.__doc__,
        **extra,
    )


def _body_schema(body: type[BaseModel]) -> dict[str, Any]:
    schema = body.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _http_exception(request: HttpRequest, error: Exception) -> Response:
    """What the framework itself refuses, unknown paths and methods, goes the way of all typed errors: to the Door."""
    assert isinstance(error, HTTPException), f"registered for HTTPException: {error!r}"
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"{request.method[:20]} {path} is not possible: use {allowed}"
        raise MethodNotAllowedError(message, headers={"allow": allowed})
    if error.status_code == 404:
        raise NoSuchRouteError(f"{path} is not served here: /openapi.json lists what is")
    raise BadRequestError(str(error.detail))
