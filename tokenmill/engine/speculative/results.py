"""What speculation gave in the end, beside plain steps: tokens per second, by size of the batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenmill.engine.speculative.depth import StepCost

#: A sum loses this share of its weight with each of its steps; plain ones are few while drafts pay.
_FORGET_AWAKE, _FORGET_PLAIN = 1 / 32, 1 / 8
#: Drafting that gains less than this may be a loss if plain steps have become cheaper.
_CLOSE = 1.5
#: Steps before a sum says anything: with drafts, and without.
_LEAST_DRAFTING, _LEAST_PLAIN = 10.0, 3.0


@dataclass(slots=True)
class _Sum:
    """Tokens and seconds of steps, of which num_counted matter for how much is known; all fading."""

    forget: float
    num_counted: float = 0.0
    num_tokens: float = 0.0
    seconds: float = 0.0

    def add(self, num_tokens: float, seconds: float, *, counts: bool) -> None:
        self.num_counted += counts - self.forget * self.num_counted
        self.num_tokens += num_tokens - self.forget * self.num_tokens
        self.seconds += seconds - self.forget * self.seconds


@dataclass(slots=True)
class Results:
    """Steps with prompts in them are left out.

    awake  steps in which the proposer's caches were kept, with drafts or without: all their seconds
    plain  steps without drafts: their seconds without those of the proposer, as if it slept
    Batches of 1, 2 to 3, 4 to 7, ... sequences are told apart.
    """

    _awake: dict[int, _Sum] = field(default_factory=dict)
    _plain: dict[int, _Sum] = field(default_factory=dict)

    def record(self, cost: StepCost, num_kept: int) -> None:
        if cost.num_other_rows:
            return
        size, num_tokens = cost.num_decoding.bit_length(), cost.num_decoding + num_kept
        if cost.depth == 0:
            self._plain.setdefault(size, _Sum(_FORGET_PLAIN)).add(num_tokens, cost.verify_s, counts=True)
        if cost.is_kept:
            seconds = cost.verify_s + cost.draft_s
            self._awake.setdefault(size, _Sum(_FORGET_AWAKE)).add(num_tokens, seconds, counts=cost.depth > 0)

    def is_losing(self, num_decoding: int) -> bool:
        """Fewer tokens per second than plain steps; False as long as too little is known."""
        gain = self._gain(num_decoding)
        return gain is not None and gain < 1.0

    def is_close(self, num_decoding: int) -> bool:
        """Plain steps should be tried more often, to be sure."""
        gain = self._gain(num_decoding)
        return gain is None or gain < _CLOSE

    def _gain(self, num_decoding: int) -> float | None:
        """Tokens per second over those of plain steps."""
        size = num_decoding.bit_length()
        awake, plain = self._awake.get(size), self._plain.get(size)
        if awake is None or plain is None:
            return None
        if awake.num_counted < _LEAST_DRAFTING or plain.num_counted < _LEAST_PLAIN:
            return None
        lost = plain.num_tokens * awake.seconds
        return awake.num_tokens * plain.seconds / lost if lost else None

    def forget_drafting(self) -> None:
        """The world may have changed: the proposer gets another chance."""
        self._awake.clear()
