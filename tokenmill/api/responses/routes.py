"""The routes of /v1/responses: a chat under another name, and the responses that were kept."""

from __future__ import annotations

import time
import uuid
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenmill.api.body import read_body
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import NoSuchRouteError, json_response
from tokenmill.api.generate_routes import MakeWriter, chat_job, respond
from tokenmill.api.responses.items import Item, read_input
from tokenmill.api.responses.objects import response_object
from tokenmill.api.responses.request import to_chat
from tokenmill.api.responses.store import StoredResponse
from tokenmill.api.responses.types import ResponsesRequest
from tokenmill.api.responses.writer import ResponseWriter
from tokenmill.api.retell import as_chat_request, retelling
from tokenmill.core.errors import CapabilityError


async def create_response(http: HttpRequest, context: ApiContext) -> Response:
    with context.lifecycle.request():
        arrival_s = context.clock.now()
        body = await read_body(http, ResponsesRequest, context.config.limits)
        previous, store = None, context.responses
        if body.previous_response_id is not None:
            previous = store.previous(body.previous_response_id, arrival_s)
        items = store.resolve(read_input(body.input))
        chat = to_chat(body, previous.items() if previous else [], items)
        with retelling(chat.paths):
            request = as_chat_request(chat)
            writer = _writer(body, context, previous, items)
            job = await chat_job(request, context, http, arrival_s, writer, chat.paths)
        return await respond(job, request, context, http)


def _writer(
    body: ResponsesRequest, context: ApiContext, previous: StoredResponse | None, items: list[Item]
) -> MakeWriter:
    model = body.model or context.models.card(None).name
    blank = response_object(body, f"resp_{uuid.uuid4().hex}", model, int(time.time()))

    def keep(ended: dict[str, Any]) -> None:
        if body.store is not False:
            context.responses.put(ended, previous, items, context.clock.now())

    return lambda generation: ResponseWriter(
        generation, context.dispatcher.ledger, context.config.stream_interval, blank, keep
    )


async def get_response(http: HttpRequest, context: ApiContext) -> Response:
    if http.query_params.get("stream", "false") != "false":
        raise CapabilityError("a response that has ended cannot be streamed again: leave stream out", param="stream")
    return json_response(_stored(http, context).body)


async def delete_response(http: HttpRequest, context: ApiContext) -> Response:
    response_id = _stored(http, context).body["id"]
    context.responses.delete(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _stored(http: HttpRequest, context: ApiContext) -> StoredResponse:
    response_id = http.path_params["response_id"]
    stored = context.responses.get(response_id, context.clock.now())
    if stored is None:
        raise NoSuchRouteError(
            f"response {response_id[:100]!r} is not here: it was sent with store=false, deleted, forgotten, or made "
            "by another server",
            param="response_id",
        )
    return stored
