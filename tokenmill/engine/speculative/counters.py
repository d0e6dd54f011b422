"""What became of drafts since start: totals, and acceptance by position. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftCounters:
    """
    num_drafts     verifications: one sequence in one step with at least one draft token
    num_tokens     draft tokens verified
    num_accepted   of them, those that stayed
    verified_at, accepted_at   the same by position behind the newest token, from 0
    """

    num_drafts: int = 0
    num_tokens: int = 0
    num_accepted: int = 0
    verified_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def record(self, num_tokens: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_tokens += num_tokens
        self.num_accepted += num_accepted
        missing = num_tokens - len(self.verified_at)
        if missing > 0:
            self.verified_at += [0] * missing
            self.accepted_at += [0] * missing
        for i in range(num_tokens):
            self.verified_at[i] += 1
            self.accepted_at[i] += i < num_accepted

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens per verification, the one behind the drafts included."""
        return 1 + self.num_accepted / self.num_drafts if self.num_drafts else None
