"""Log-probabilities in the shapes of OpenAI (chat, completions) and vLLM (prompt_logprobs).

Not responsible for: the text and place of a token (text/logprobs.py), or which tokens are shown (text/output.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.text.logprobs import Alternative, TextLogprob

#: JSON has no infinity; OpenAI writes this for "never".
_NEVER = -9999.0


def chat_logprobs(rows: Sequence[TextLogprob]) -> dict[str, Any]:
    """One entry per token with its bytes and its alternatives."""
    return {"content": [_entry(row) | {"top_logprobs": [_entry(other) for other in row.top]} for row in rows]}


def _entry(row: TextLogprob | Alternative) -> dict[str, Any]:
    return {"token": row.token, "logprob": _finite(row.logprob), "bytes": list(row.bytes)}


def completion_logprobs(rows: Sequence[TextLogprob], shift: int = 0) -> dict[str, Any]:
    """Parallel lists. `shift`: characters before the text that the rows' offsets count from."""
    return {
        "tokens": [_name(row) for row in rows],
        "token_logprobs": [_finite(row.logprob) for row in rows],
        "top_logprobs": [_by_name(row) for row in rows],
        "text_offset": [max(0, row.text_offset + shift) for row in rows],
    }


def echoed_logprobs(first_token: str, rows: Sequence[TextLogprob], shift: int = 0) -> dict[str, Any]:
    """Those of a repeated prompt: nothing predicts its first token, hence two nulls."""
    rest = completion_logprobs(rows, shift)
    return {
        "tokens": [first_token, *rest["tokens"]],
        "token_logprobs": [None, *rest["token_logprobs"]],
        "top_logprobs": [None, *rest["top_logprobs"]],
        "text_offset": [0, *rest["text_offset"]],
    }


def join(first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    return {name: first[name] + then[name] for name in first}


def prompt_logprobs(rows: Sequence[TextLogprob]) -> list[dict[str, Any] | None]:
    """vLLM: per prompt token a map id -> {logprob, rank, decoded_token}; null for the first."""
    return [None, *(_by_id(row) for row in rows)]


def _by_id(row: TextLogprob) -> dict[str, Any]:
    named: dict[str, Any] = {
        str(other.token_id): {"logprob": _finite(other.logprob), "rank": rank, "decoded_token": other.token}
        for rank, other in enumerate(row.top, 1)
    }
    # A token below the alternatives: its rank is not known.
    mine = {"logprob": _finite(row.logprob), "rank": None, "decoded_token": row.token}
    named.setdefault(str(row.token_id), mine)
    return named


def _by_name(row: TextLogprob) -> dict[str, float]:
    """The chosen token is always in it. Of two tokens with one name the likelier stays."""
    named: dict[str, float] = {}
    ones: tuple[TextLogprob | Alternative, ...] = (*row.top, row)
    for one in ones:
        named.setdefault(_name(one), _finite(one.logprob))
    return named


def _name(row: TextLogprob | Alternative) -> str:
    """A piece of a character is spelled out, as OpenAI does, so that two pieces do not share a name."""
    try:
        row.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in row.bytes)
    return row.token


def _finite(logprob: float) -> float:
    return max(logprob, _NEVER)
