"""What is left of a price: revenue of a mix of tokens against what the tokens cost. Pure.

Not responsible for: where price and cost come from (cost/prices, cost/report, infra/catalogue).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError
from tokenmill.cost.prices import TokenPrice


@dataclass(frozen=True, slots=True)
class Mix:
    """Input tokens for each output token, and the share of the input that is billed as cached."""

    input_tokens: float
    output_tokens: float
    cached_share: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.cached_share <= 1):
            raise ConfigError(f"--cached-share={self.cached_share} is not possible: give 0 to 1")
        figures = (self.input_tokens, self.output_tokens)
        if not all(math.isfinite(n) and n >= 0 for n in figures) or sum(figures) == 0:
            raise ConfigError(f"--mix {self.input_tokens:g}:{self.output_tokens:g} is no mix: write e.g. 8:1")

    @classmethod
    def parse(cls, text: str, cached_share: float = 0.0) -> Mix:
        """`8:1`: input to output."""
        try:
            given_in, given_out = (float(part) for part in text.split(":"))
        except ValueError:
            raise ConfigError(f"--mix {text!r} is not IN:OUT: write e.g. 8:1") from None
        return cls(given_in, given_out, cached_share)


@dataclass(frozen=True, slots=True)
class Margin:
    """Dollars per million tokens of the mix, input and output together.

    margin_share     of the revenue, what is left; None without revenue
    price_over_cost  how many times its cost a token is sold for; None when it costs nothing
    """

    revenue_usd_per_mtok: float
    cost_usd_per_mtok: float

    @property
    def margin_usd_per_mtok(self) -> float:
        return self.revenue_usd_per_mtok - self.cost_usd_per_mtok

    @property
    def margin_share(self) -> float | None:
        return self.margin_usd_per_mtok / self.revenue_usd_per_mtok if self.revenue_usd_per_mtok else None

    @property
    def price_over_cost(self) -> float | None:
        return self.revenue_usd_per_mtok / self.cost_usd_per_mtok if self.cost_usd_per_mtok else None


def margin(price: TokenPrice, mix: Mix, cost_usd_per_mtok: float) -> Margin:
    """cost_usd_per_mtok  over input and output tokens alike, at this mix"""
    if not (math.isfinite(cost_usd_per_mtok) and cost_usd_per_mtok >= 0):
        raise ConfigError(f"a cost of ${cost_usd_per_mtok} per million tokens is not possible: give 0 or more")
    cached = price.cache_read_input_token_cost
    input_cost = price.input_cost_per_token
    cached_cost = input_cost if cached is None else cached
    per_input = (1 - mix.cached_share) * input_cost + mix.cached_share * cached_cost
    revenue = mix.input_tokens * per_input + mix.output_tokens * price.output_cost_per_token
    return Margin(revenue / (mix.input_tokens + mix.output_tokens) * 1e6, cost_usd_per_mtok)
