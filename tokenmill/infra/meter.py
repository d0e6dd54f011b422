"""The power-meter seam: what a meter is, what it is opened with, and the meter that only multiplies.

Not responsible for: choosing a meter (infra/power), reading hardware (infra/rapl, infra/nvml).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tokenmill.core.clock import Clock


class EnergySource(StrEnum):
    MEASURED = "measured"  # a hardware counter
    MODELLED = "modelled"  # watts x seconds


class PowerMeter(Protocol):
    """
    source        says of every figure made from this meter whether it was measured
    read_joules   cumulative since the meter was opened; never falls; cheap enough for once per step
    """

    source: EnergySource

    def read_joules(self) -> float: ...


class MeterUnavailable(Exception):
    """This meter cannot work here; the message says why."""


@dataclass(frozen=True, slots=True)
class MeterContext:
    """What a meter may need to open.

    watts        constant draw for the modelled meter
    clock        time for the modelled meter
    root         where /sys is found (tests)
    nvml_module  name of the NVML package (tests)
    gpu_indices  None: all
    """

    watts: float
    clock: Clock
    root: Path = Path("/")
    nvml_module: str = "pynvml"
    gpu_indices: Sequence[int] | None = None


class CatalogueMeter:
    """Watts x time: for machines without a readable counter, and for virtual time."""

    source = EnergySource.MODELLED

    def __init__(self, watts: float, clock: Clock) -> None:
        self._watts = watts
        self._clock = clock
        self._start_s = clock.now()

    def read_joules(self) -> float:
        return self._watts * (self._clock.now() - self._start_s)


class SharedMeter:
    """One worker's share of a meter that covers the whole machine."""

    def __init__(self, meter: PowerMeter, share: float) -> None:
        self._meter = meter
        self._share = share
        self.source = meter.source

    def read_joules(self) -> float:
        return self._meter.read_joules() * self._share


def open_catalogue_meter(context: MeterContext) -> CatalogueMeter:
    return CatalogueMeter(context.watts, context.clock)
