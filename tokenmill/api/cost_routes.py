"""`GET /v1/cost`: the ledger's answers over HTTP. Not responsible for: what is asked and answered (cost/report)."""

from __future__ import annotations

import time
from itertools import count, takewhile
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tokenmill.api.context import ApiContext
from tokenmill.api.errors import NoSuchRouteError, json_response
from tokenmill.cost.report import parse_query, report


async def get_cost(http: HttpRequest, context: ApiContext) -> Response:
    """What everything cost, or what a window, tenant, session, model or (with request_id) one request did."""
    ledger = context.dispatcher.ledger
    given = dict(http.query_params)
    request_id = given.pop("request_id", None)
    if request_id is not None:
        return json_response(_request(request_id, context))
    query = parse_query(given, time.time())
    answer = report(ledger.cells(), query, ledger.spending.line_of)
    if not query.to_dict().keys() - {"by"}:
        now_s = context.clock.now()
        balance = ledger.check_balance(now_s)
        answer["balance"] = {
            "monotonic_s": now_s,
            "process_seconds": balance.process_s,
            "explained_seconds": balance.explained_s,
            "unreported_seconds": balance.unreported_s,
            "unexplained_seconds": balance.unexplained_s,
        }
    return json_response(answer)


def _request(request_id: str, context: ApiContext) -> dict[str, Any]:
    """One choice by its own id, or all choices of an answer by the answer's."""
    ledger = context.dispatcher.ledger
    choices = (f"{request_id}-{index}" for index in count())
    names = [request_id] if ledger.request(request_id) else list(takewhile(ledger.request, choices))
    if not names:
        raise NoSuchRouteError(
            f"request {request_id[:100]!r} is not known: it never ran here, or ended long ago (the ledger's file, if "
            "there is one, has it)",
            param="request_id",
        )
    entries = [(name, entry) for name in names if (entry := ledger.request(name))]
    costs = [entry.cost() for _, entry in entries]
    first = entries[0][1].owner
    return {
        "object": "cost.request",
        "request_id": request_id,
        **first._asdict(),
        "usd": sum(cost.usd for cost in costs),
        "seconds": sum(cost.seconds for cost in costs),
        "choices": [
            {
                "request_id": name,
                "usd": cost.usd,
                "seconds": {line.value: seconds for line, seconds in cost.by_line.items()},
                "joules": cost.joules,
                "energy_source": cost.energy_source.value,
                "is_ended": entry.counts.num_requests > 0,
            }
            for (name, entry), cost in zip(entries, costs, strict=True)
        ],
    }
