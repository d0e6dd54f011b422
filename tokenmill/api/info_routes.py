"""Routes that make no tokens: models, probes, version, metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import tokenmill
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import RETRY_AFTER_S, json_response
from tokenmill.core.model_card import ModelCard


async def list_models(http: HttpRequest, context: ApiContext) -> Response:
    cards = context.models.cards()
    return json_response({"object": "list", "data": [_model(name, cards[name]) for name in sorted(cards)]})


async def get_model(http: HttpRequest, context: ApiContext) -> Response:
    name = http.path_params["model_id"]
    return json_response(_model(name, context.models.card(name)))


def _model(name: str, card: ModelCard) -> dict[str, Any]:
    """OpenAI's fields, vLLM's max_model_len, and what a planner wants to know."""
    return {
        "id": name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "tokenmill",
        "root": card.name,
        "parent": None,
        "max_model_len": card.max_model_len,
        "kv_capacity_tokens": card.kv_capacity_tokens,
        "vocab_size": card.vocab_size,
        "architecture": card.architecture,
        "dtype": card.dtype,
        "num_parameters": card.num_parameters,
        "has_tokenizer": card.tokenizer_path is not None,
    }


async def live(http: HttpRequest, context: ApiContext) -> Response:
    """This process answers."""
    return json_response({"status": "live"})


async def ready(http: HttpRequest, context: ApiContext) -> Response:
    """Requests are welcome: every model has a worker, tokenizers are loaded, nobody asked us to stop."""
    health = context.dispatcher.health()
    ours = context.lifecycle.not_ready_reason()
    if health.is_ready and ours is None:
        return json_response({"status": "ready"})
    return _unavailable("not ready", [*([ours] if ours else []), *health.reasons])


async def health(http: HttpRequest, context: ApiContext) -> Response:
    """Nothing is wrong that will not pass by itself."""
    health = context.dispatcher.health()
    if health.is_healthy:
        return json_response({"status": "healthy", "reasons": health.reasons})
    return _unavailable("unhealthy", list(health.reasons))


def _unavailable(status: str, reasons: list[str]) -> Response:
    response = json_response({"status": status, "reasons": reasons}, 503)
    response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response


async def version(http: HttpRequest, context: ApiContext) -> Response:
    return json_response({"version": tokenmill.__version__})


async def metrics(http: HttpRequest, context: ApiContext) -> Response:
    return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)
