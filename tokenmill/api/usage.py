"""The `usage` object: tokens by OpenAI's words, and what the answer cost.

Counting rule: completion_tokens are the generated ids up to the end of the text, of all choices; the end-of-sequence
or stop token that ended it counts, tokens computed behind a stop string do not. A prompt counts once however many
choices it has, and so do its cached tokens (those of its first choice). Streaming or not, the numbers are the same.
"""

from __future__ import annotations

from typing import Any

from tokenmill.api.generation import Generation
from tokenmill.cost.ledger import Ledger


def token_usage(generation: Generation) -> dict[str, Any]:
    """As of now; final once the generation has ended."""
    firsts = [i for i, request in enumerate(generation.requests) if request.choice_index == 0]
    num_prompt_tokens = sum(len(generation.requests[i].prompt_token_ids) for i in firsts)
    num_output_tokens = sum(generation.num_output_tokens)
    usage: dict[str, Any] = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(generation.num_cached_tokens[i] for i in firsts)},
    }
    if generation.counts_reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": sum(generation.num_reasoning_tokens)}
    return usage


def full_usage(generation: Generation, ledger: Ledger) -> dict[str, Any]:
    return token_usage(generation) | {"cost": _cost(generation, ledger)}


def _cost(generation: Generation, ledger: Ledger) -> dict[str, Any]:
    """Summed over the choices; one modelled part makes the energy of the whole modelled."""
    costs = [ledger.request_cost(request.request_id) for request in generation.requests]
    sources = {cost.energy_source for cost in costs}
    return {
        "usd": sum(cost.usd for cost in costs),
        "joules": sum(cost.joules for cost in costs),
        "energy_source": "measured" if sources == {"measured"} else "modelled",
    }
