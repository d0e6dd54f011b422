"""Sums of device time with its dollars and joules, in whole numbers, so that parts add up to their whole exactly.

Not responsible for: what the time was spent on, and by whom (cost/cells, cost/requests).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tokenmill.core.ticks import TICKS_PER_S
from tokenmill.cost.rates import MICRO, PICO, UnitRate
from tokenmill.infra.meter import EnergySource

#: Money is counted in (dollars / PICO per hour) x ticks; energy of watts x time in (watts / MICRO) x ticks.
MONEY_PER_USD = PICO * 3600 * TICKS_PER_S
_ENERGY_PER_JOULE = MICRO * TICKS_PER_S
_NANO = 10**9


class _Figures:
    """What the whole numbers of an Amount or a Tally say in seconds, dollars and joules."""

    __slots__ = ()

    ticks: int
    device_ticks: int
    money: int
    metered_ticks: int
    measured_nj: int
    unmetered_energy: int
    watts_energy: int

    @property
    def seconds(self) -> float:
        """Of worker processes; a gang of ranks counts once."""
        return self.ticks / TICKS_PER_S

    @property
    def device_seconds(self) -> float:
        """Every device of a gang counts."""
        return self.device_ticks / TICKS_PER_S

    @property
    def usd(self) -> float:
        return self.money / MONEY_PER_USD

    @property
    def metered_s(self) -> float:
        """Of `seconds`, those whose energy a meter read."""
        return self.metered_ticks / TICKS_PER_S

    @property
    def measured_joules(self) -> float:
        """What the meter read in metered_s."""
        return self.measured_nj / _NANO

    @property
    def unmetered_joules(self) -> float:
        """Watts x seconds of the rest; adds up with measured_joules."""
        return self.unmetered_energy / _ENERGY_PER_JOULE

    @property
    def watts_joules(self) -> float:
        """Watts x seconds of everything."""
        return self.watts_energy / _ENERGY_PER_JOULE

    @property
    def energy_source(self) -> EnergySource:
        """Measured only when every second was: one figure never mixes both."""
        is_measured = self.metered_ticks > 0 and self.metered_ticks >= self.ticks
        return EnergySource.MEASURED if is_measured else EnergySource.MODELLED

    @property
    def joules(self) -> float:
        """One figure of one source: the meter's, or watts x seconds of everything."""
        return self.measured_joules if self.energy_source is EnergySource.MEASURED else self.watts_joules


@dataclass(frozen=True, slots=True)
class Amount(_Figures):
    """Some device time and what it cost; fields in the units above."""

    ticks: int = 0
    device_ticks: int = 0
    money: int = 0
    metered_ticks: int = 0
    measured_nj: int = 0
    unmetered_energy: int = 0
    watts_energy: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, name) + getattr(other, name) for name in AMOUNT_FIELDS))


@dataclass(slots=True)
class Tally(_Figures):
    """An Amount that grows; the same fields, and cheaper to add to."""

    ticks: int = 0
    device_ticks: int = 0
    money: int = 0
    metered_ticks: int = 0
    measured_nj: int = 0
    unmetered_energy: int = 0
    watts_energy: int = 0

    def charge(self, ticks: int, rate: UnitRate, measured_nj: int | None = None) -> None:
        """`measured_nj`: what a meter read in this time; None: no meter."""
        energy = ticks * rate.micro_watts
        self.ticks += ticks
        self.device_ticks += ticks * rate.num_devices
        self.money += ticks * rate.pico_usd_per_hour
        self.watts_energy += energy
        if measured_nj is None:
            self.unmetered_energy += energy
        else:
            self.metered_ticks += ticks
            self.measured_nj += measured_nj

    def add(self, other: Amount | Tally) -> None:
        self.ticks += other.ticks
        self.device_ticks += other.device_ticks
        self.money += other.money
        self.metered_ticks += other.metered_ticks
        self.measured_nj += other.measured_nj
        self.unmetered_energy += other.unmetered_energy
        self.watts_energy += other.watts_energy

    def freeze(self) -> Amount:
        return Amount(*(getattr(self, name) for name in AMOUNT_FIELDS))


AMOUNT_FIELDS = tuple(field.name for field in fields(Amount))


def money_of(usd: float) -> int:
    """Dollars that are no device time (storage), in the units of the sums."""
    return round(usd * MONEY_PER_USD)
