"""Total cost of ownership: what an hour of a device costs whoever buys it, and what that depends on.

    $/hour = capex_net * CRF(r, n) / (8760 * uptime) + kW * PUE * $/kWh + opex / (8760 * uptime)
    CRF(r, n) = r (1 + r)**n / ((1 + r)**n - 1)  capital recovery: what a dollar, borrowed for n years, costs each year
    capex_net = capex - residual / (1 + r)**n       what it is sold for in the end, at today's worth

An hour that is used costs $/hour / utilisation. Pure. Not responsible for: prices of renting (infra/catalogue).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tokenmill.core.errors import ConfigError

HOURS_PER_YEAR = 8760.0
#: Parameter -> what it may be, for messages.
_RANGES = {
    "capex_usd": (0, math.inf, "0 or more dollars"),
    "years": (0.1, 50, "0.1 to 50 years"),
    "cost_of_capital": (0, 1, "a share from 0 to 1, e.g. 0.1"),
    "residual_share": (0, 1, "a share from 0 to 1"),
    "watts": (0, math.inf, "0 or more watts"),
    "pue": (1, 5, "1 to 5"),
    "usd_per_kwh": (0, 10, "0 to 10 dollars"),
    "opex_usd_per_year": (0, math.inf, "0 or more dollars"),
    "uptime": (0.01, 1, "a share from 0.01 to 1"),
    "utilisation": (0.001, 1, "a share from 0.001 to 1"),
}


@dataclass(frozen=True, slots=True)
class Tco:
    """
    capex_usd          of one device, its part of server and network included
    years              of economic life
    cost_of_capital    per year
    residual_share     of capex, what it is sold for at the end
    watts              at the plug, host and network share included
    pue                facility watts per plug watt
    opex_usd_per_year  hosting, staff, spares, software
    uptime             share of hours it can work at all
    utilisation        share of those that are sold
    """

    capex_usd: float
    years: float = 4.0
    cost_of_capital: float = 0.10
    residual_share: float = 0.0
    watts: float = 0.0
    pue: float = 1.3
    usd_per_kwh: float = 0.08
    opex_usd_per_year: float = 0.0
    uptime: float = 1.0
    utilisation: float = 1.0

    def __post_init__(self) -> None:
        for name, (low, high, possible) in _RANGES.items():
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                raise ConfigError(f"--{name.replace('_', '-')}={value} is not possible: give {possible}")

    @property
    def capital_recovery_factor(self) -> float:
        rate, years = self.cost_of_capital, self.years
        if rate == 0:
            return 1 / years
        growth = math.expm1(years * math.log1p(rate))  # (1 + r)**n - 1 without loss for small r
        return rate * (1 + growth) / growth

    @property
    def capital_usd_per_hour(self) -> float:
        residual = self.capex_usd * self.residual_share / (1 + self.cost_of_capital) ** self.years
        return (self.capex_usd - residual) * self.capital_recovery_factor / (HOURS_PER_YEAR * self.uptime)

    @property
    def power_usd_per_hour(self) -> float:
        return self.watts / 1000 * self.pue * self.usd_per_kwh

    @property
    def opex_usd_per_hour(self) -> float:
        return self.opex_usd_per_year / (HOURS_PER_YEAR * self.uptime)

    @property
    def usd_per_hour(self) -> float:
        return self.capital_usd_per_hour + self.power_usd_per_hour + self.opex_usd_per_hour

    @property
    def usd_per_used_hour(self) -> float:
        return self.usd_per_hour / self.utilisation

    def usd_per_mtok(self, tok_per_s: float) -> float:
        """tok_per_s  of a device that is at work"""
        if not (math.isfinite(tok_per_s) and tok_per_s > 0):
            raise ConfigError(f"--tok-s={tok_per_s} is not possible: give tokens per second of one device")
        return self.usd_per_used_hour * 1e6 / (3600 * tok_per_s)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What changing one parameter does. elasticity: per cent of $/used hour for one per cent of the parameter."""

    name: str
    low: float
    high: float
    usd_per_used_hour_low: float
    usd_per_used_hour_high: float
    elasticity: float


def sensitivities(tco: Tco, by: float = 0.2) -> list[Sensitivity]:
    """Each parameter that is not 0, lowered and raised by this share within its range; the strongest first."""
    rows = [_sensitivity(tco, name, by) for name in _RANGES if getattr(tco, name)]
    return sorted(rows, key=lambda row: -abs(row.usd_per_used_hour_high - row.usd_per_used_hour_low))


def _sensitivity(tco: Tco, name: str, by: float) -> Sensitivity:
    value, (floor, ceiling, _) = getattr(tco, name), _RANGES[name]
    low, high = max(floor, value * (1 - by)), min(ceiling, value * (1 + by))
    below, above = (replace(tco, **{name: v}).usd_per_used_hour for v in (low, high))
    step = 1e-4 if value * (1 + 1e-4) <= ceiling else -1e-4
    base = tco.usd_per_used_hour
    nudged = replace(tco, **{name: value * (1 + step)}).usd_per_used_hour
    return Sensitivity(name, low, high, below, above, (nudged / base - 1) / step if base else 0.0)
