"""What one worker costs per second: dollars and watts, from flags or from the catalogue.

Not responsible for: adding anything up (cost/ledger).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tokenmill.core.errors import ConfigError
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.infra.device_spec import DeviceSpec, Figure, Price, PriceKind
from tokenmill.infra.devices import detect_machine, machine_spec
from tokenmill.infra.meter import EnergySource

_SECONDS_PER_HOUR = 3600
#: Prices are billed in whole picodollars per hour, draws in whole microwatts (cost/tally).
PICO = 10**12
MICRO = 10**6


@dataclass(frozen=True, slots=True)
class UnitRate:
    """A rate in whole numbers, all devices of a gang together."""

    pico_usd_per_hour: int
    micro_watts: int
    num_devices: int = 1


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """Price and draw of what one worker owns: its share of a machine, or all devices of its ranks.

    num_devices    the ranks of a gang: they are taken together, busy or not, so every second counts for each of them
    energy_source  of joules made from `watts`: always modelled; joules in a worker's frames are measured
    is_estimated   price or watts were published by nobody
    source         for people: where both come from, with dates
    """

    usd_per_hour: float
    watts: float
    energy_source: EnergySource = EnergySource.MODELLED
    is_estimated: bool = False
    source: str = ""
    num_devices: int = 1

    @property
    def units(self) -> UnitRate:
        return UnitRate(round(self.usd_per_hour * PICO), round(self.watts * MICRO), self.num_devices)

    def gang(self, num_ranks: int) -> DeviceRate:
        """The rate of a worker of this many ranks, each of which owns what this rate is for."""
        if num_ranks == 1:
            return self
        return replace(
            self,
            usd_per_hour=self.usd_per_hour * num_ranks,
            watts=self.watts * num_ranks,
            num_devices=self.num_devices * num_ranks,
        )

    def usd(self, seconds: float) -> float:
        return self.usd_per_hour * seconds / _SECONDS_PER_HOUR

    def joules(self, seconds: float) -> float:
        return self.watts * seconds


def resolve_rate(
    price_per_hour: float | None = None,
    watts: float | None = None,
    share: float = 1.0,
    *,
    spec: DeviceSpec | None = None,
    price_kind: PriceKind | None = None,
) -> DeviceRate:
    """The rate of a worker that owns `share` of a device; for n workers on one machine that is 1/n each.

    price_per_hour, watts  of the whole device, as a user states them (0 is possible); None: the catalogue's
    spec                   catalogue entry; None: this machine's CPUs
    price_kind             which of its prices; None: rental, else what there is
    """
    assert 0 < share <= 1, f"share {share}"
    for flag, value in (("--price-per-hour", price_per_hour), ("--watts", watts)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{flag}={value} is not possible: give 0 or more")
    if spec is None and (price_per_hour is None or watts is None):
        spec = machine_spec(detect_machine(), load_catalogue())
    price = _catalogue_price(spec, price_kind) if spec and price_per_hour is None else None
    draw = _catalogue_watts(spec) if spec and watts is None else None
    whole_usd = price.usd_per_hour if price else price_per_hour
    whole_watts = draw.value if draw else watts
    assert whole_usd is not None and whole_watts is not None
    return DeviceRate(
        usd_per_hour=whole_usd * share,
        watts=whole_watts * share,
        is_estimated=any(figure.is_estimated for figure in (price, draw) if figure),
        source=f"price: {_origin(price, '--price-per-hour')}; watts: {_origin(draw, '--watts')}",
    )


def _catalogue_price(spec: DeviceSpec, kind: PriceKind | None) -> Price:
    price = spec.price(kind)
    if price is None:
        what = f"no {kind} price" if kind else "no price"
        kinds = ", ".join(sorted({p.kind for p in spec.prices})) or "none"
        raise ConfigError(f"catalogue entry {spec.key} has {what} (it has: {kinds}): give --price-per-hour")
    return price


def _catalogue_watts(spec: DeviceSpec) -> Figure:
    """With its share of host and network where known: that is what is paid for."""
    draw = spec.all_in_w or spec.tdp_w
    if draw is None:
        raise ConfigError(f"catalogue entry {spec.key} has no watts: give --watts")
    return draw


def _origin(figure: Price | Figure | None, flag: str) -> str:
    if figure is None:
        return flag
    kind = f"{figure.kind}, " if isinstance(figure, Price) else ""
    note = f" ({figure.note})" if figure.note else ""
    return f"{kind}{figure.source}, {figure.as_of}{note}{', estimated' if figure.is_estimated else ''}"
