"""What is known of one model's workers beside the fleet's view of them. Policies read it, watch.py writes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenmill.core.slo import SLO
from tokenmill.operations.router.backlog import Backlog
from tokenmill.operations.router.index import PrefixIndex
from tokenmill.operations.router.step_rates import StepRates


@dataclass(slots=True)
class Knowledge:
    """
    usd_per_s    price of one worker
    slo          the latencies that make an answer's tokens good; None: any will do, sooner is better
    hit_share    of the prompt tokens of late, how many came out of a cache, 0..1
    """

    index: PrefixIndex = field(default_factory=PrefixIndex)
    backlog: Backlog = field(default_factory=Backlog)
    rates: StepRates = field(default_factory=StepRates)
    usd_per_s: float = 1e-3
    slo: SLO | None = None
    hit_share: float = 0.0

    def observe_hit(self, num_cached_tokens: int, num_prompt_tokens: int) -> None:
        """A request started with so many tokens from a cache."""
        self.hit_share += 0.02 * (num_cached_tokens / max(1, num_prompt_tokens) - self.hit_share)
