"""The routes of /v1/messages: a chat under another name, and the length of its prompt."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenmill.api.anthropic.request import to_chat
from tokenmill.api.anthropic.types import CountTokensRequest, MessagesRequest
from tokenmill.api.anthropic.writer import MessageWriter
from tokenmill.api.body import read_body, unless_gone
from tokenmill.api.chat_request import plan_chat
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import json_response
from tokenmill.api.generate_routes import chat_job, respond
from tokenmill.api.refusals import refuse_unsupported_chat
from tokenmill.api.retell import as_chat_request, retelling


async def create_message(http: HttpRequest, context: ApiContext) -> Response:
    with context.lifecycle.request():
        arrival_s = context.clock.now()
        body = await read_body(http, MessagesRequest, context.config.limits)
        chat = to_chat(body)
        with retelling(chat.paths):
            request = as_chat_request(chat)
            model = body.model or context.models.card(None).name
            job = await chat_job(
                request,
                context,
                http,
                arrival_s,
                lambda generation: MessageWriter(
                    generation,
                    context.dispatcher.ledger,
                    context.config.stream_interval,
                    model,
                    http.state.request_id,
                ),
                chat.paths,
            )
        return await respond(job, request, context, http)


async def count_tokens(http: HttpRequest, context: ApiContext) -> Response:
    """The very prompt that /v1/messages would run."""
    body = await read_body(http, CountTokensRequest, context.config.limits)
    chat = to_chat(body)
    with retelling(chat.paths):
        request = as_chat_request(chat)
        refuse_unsupported_chat(request)
        service = await context.models.get(request.model)
        plan = await unless_gone(http.receive, plan_chat(request, service, context.config.limits.max_tools))
    return json_response({"input_tokens": len(plan.prompt.token_ids)})
