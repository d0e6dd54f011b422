"""The response object before there is output, and its usage. Pure."""

from __future__ import annotations

from typing import Any

from tokenmill.api.responses.types import ResponsesRequest


def response_object(body: ResponsesRequest, response_id: str, model: str, created_s: int) -> dict[str, Any]:
    """What the client asked for, repeated as OpenAI does; status and output are those of events.py."""
    reasoning, text = body.reasoning, body.text
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": (text and text.format) or {"type": "text"},
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def response_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage of a chat answer in the words of Responses. Writing to the cache costs nothing extra here."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
    told = {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage["total_tokens"],
    }
    return told | ({"cost": usage["cost"]} if "cost" in usage else {})
