"""What was observed of one request. Pure: no clock, no sockets. Not responsible for: sums of many (request_metrics)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it; seconds on one clock.

    chunk_s            when each chunk that carried output arrived, in order
    num_prompt_tokens  by the server's count (usage), num_cached_tokens of them from its prefix cache
    num_output_tokens  by the server's count
    usd, joules        what the server says it cost; None: it does not say
    error              None: it ended as asked
    has_usage          False: the server sent no usage; prompt tokens are those asked for, output tokens are chunks
    due_s              when it should have been sent; None: nothing was planned
    isl, osl           tokens asked for; None: not told
    """

    sent_s: float
    end_s: float
    chunk_s: tuple[float, ...] = ()
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str | None = None
    usd: float | None = None
    joules: float | None = None
    error: str | None = None
    has_usage: bool = True
    due_s: float | None = None
    isl: int | None = None
    osl: int | None = None
    session_id: str | None = None
    parent_session_id: str | None = None
    turn_index: int = 0
    model: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        return self.chunk_s[0] - self.sent_s if self.chunk_s else None

    @property
    def e2e_s(self) -> float | None:
        return self.chunk_s[-1] - self.sent_s if self.chunk_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between tokens, the first excluded; None for a single token, or where all came at once."""
        if len(self.chunk_s) < 2 or self.num_output_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.num_output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Gaps between chunks as the client saw them; a server that sends several tokens at once has fewer."""
        return [later - earlier for earlier, later in pairwise(self.chunk_s)]

    @property
    def late_s(self) -> float:
        """How much later than planned it was sent."""
        return 0.0 if self.due_s is None else max(0.0, self.sent_s - self.due_s)

    def to_dict(self) -> dict[str, Any]:
        """One line of the per-request JSONL."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {
            "chunk_s": list(self.chunk_s),
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> RequestRecord:
        known = {f.name for f in fields(cls)}
        record = cls(**{name: item for name, item in value.items() if name in known})
        return replace(record, chunk_s=tuple(record.chunk_s))


def with_checked_clock(record: RequestRecord) -> RequestRecord:
    """The record, or the record as a failure when its times run backwards: such a latency would be a lie."""
    times = (record.sent_s, *record.chunk_s, record.end_s)
    worst_s = min((later - earlier for earlier, later in pairwise(times)), default=0.0)
    if worst_s >= 0 or record.error is not None:
        return record
    return replace(record, error="the client's clock went backwards", chunk_s=(), end_s=max(times))
