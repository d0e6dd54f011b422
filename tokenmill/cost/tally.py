"""Running sums of device time with its dollars and joules; and their frozen form.

Not responsible for: what the time was spent on, and by whom (life, requests).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.cost.rates import DeviceRate
from tokenmill.infra.meter import EnergySource


@dataclass(frozen=True, slots=True)
class Amount:
    """Some device time and what it cost.

    metered_s         of `seconds`, those whose energy a meter read
    measured_joules   what the meter read in metered_s
    unmetered_joules  watts x seconds of the rest; adds up with measured_joules
    watts_joules      watts x seconds of everything
    """

    seconds: float = 0.0
    usd: float = 0.0
    metered_s: float = 0.0
    measured_joules: float = 0.0
    unmetered_joules: float = 0.0
    watts_joules: float = 0.0

    @property
    def energy_source(self) -> EnergySource:
        """Measured only when every second was: one figure never mixes both."""
        is_measured = self.metered_s > 0 and self.metered_s >= self.seconds
        return EnergySource.MEASURED if is_measured else EnergySource.MODELLED

    @property
    def joules(self) -> float:
        """One figure of one source: the meter's, or watts x seconds of everything."""
        return self.measured_joules if self.energy_source is EnergySource.MEASURED else self.watts_joules

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.seconds + other.seconds,
            self.usd + other.usd,
            self.metered_s + other.metered_s,
            self.measured_joules + other.measured_joules,
            self.unmetered_joules + other.unmetered_joules,
            self.watts_joules + other.watts_joules,
        )


@dataclass(slots=True)
class Tally:
    """An Amount that grows; the same fields, and cheaper to add to."""

    seconds: float = 0.0
    usd: float = 0.0
    metered_s: float = 0.0
    measured_joules: float = 0.0
    unmetered_joules: float = 0.0
    watts_joules: float = 0.0

    def charge(self, seconds: float, rate: DeviceRate, joules: float | None = None) -> None:
        """`joules`: what a meter read in these seconds; None: no meter."""
        drawn = rate.joules(seconds)
        self.seconds += seconds
        self.usd += rate.usd(seconds)
        self.watts_joules += drawn
        if joules is None:
            self.unmetered_joules += drawn
        else:
            self.metered_s += seconds
            self.measured_joules += joules

    def add(self, amount: Amount) -> None:
        self.seconds += amount.seconds
        self.usd += amount.usd
        self.metered_s += amount.metered_s
        self.measured_joules += amount.measured_joules
        self.unmetered_joules += amount.unmetered_joules
        self.watts_joules += amount.watts_joules

    def freeze(self) -> Amount:
        return Amount(
            self.seconds,
            self.usd,
            self.metered_s,
            self.measured_joules,
            self.unmetered_joules,
            self.watts_joules,
        )
