"""/tokenize and /detokenize, as vLLM spells them: exactly the ids that a completion or chat request would get."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenmill.api.body import read_body, unless_gone
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import json_response
from tokenmill.api.generation import EncodedPrompt
from tokenmill.api.model_service import ModelService
from tokenmill.api.openai_types import DetokenizeRequest, TokenizeRequest
from tokenmill.api.refusals import refuse_unsupported_template
from tokenmill.core.errors import BadRequestError


async def tokenize(http: HttpRequest, context: ApiContext) -> Response:
    body = await read_body(http, TokenizeRequest, context.config.limits)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("prompt and messages: give one of them", param="prompt")
    service = await context.models.get(body.model)
    encoded = await unless_gone(http.receive, _encode(body, service))
    answer = {
        "count": len(encoded.token_ids),
        "max_model_len": service.card.max_model_len,
        "tokens": encoded.token_ids,
        "token_strs": None,
    }
    if body.return_token_strs:
        token_text = service.require_tokenizer("return_token_strs").token_text
        answer["token_strs"] = [token_text(token_id) for token_id in encoded.token_ids]
    return json_response(answer)


async def _encode(body: TokenizeRequest, service: ModelService) -> EncodedPrompt:
    if body.messages is not None:
        refuse_unsupported_template(body)
        return await service.encode_chat(body.messages, body, tools=body.tools)
    return await service.encode_prompt(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)


async def detokenize(http: HttpRequest, context: ApiContext) -> Response:
    body = await read_body(http, DetokenizeRequest, context.config.limits)
    service = await context.models.get(body.model)
    tokenizer = service.require_tokenizer("tokens")
    service.check_ids(body.tokens, "tokens")
    return json_response({"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)})
