"""Choosing the power meter of a worker: the best that works here, with the reason told.

Meters: nvml and rapl are measured; catalogue is modelled (watts x seconds). Others come by entry point.
Not responsible for: what a joule is charged to (cost/ledger).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.errors import ResourceError
from tokenmill.core.registry import Registry
from tokenmill.infra.device_spec import DeviceKind
from tokenmill.infra.meter import EnergySource, MeterContext, MeterUnavailable, PowerMeter, SharedMeter

METERS = Registry(
    "power meter",
    "tokenmill.power_meters",
    {
        "nvml": "tokenmill.infra.nvml:open_nvml_meter",
        "rapl": "tokenmill.infra.rapl:open_rapl_meter",
        "catalogue": "tokenmill.infra.meter:open_catalogue_meter",
    },
)
#: A GPU's counter says nothing of its host and the other way round, so each kind has one that fits.
_BEST_FIRST = {DeviceKind.GPU: ("nvml", "catalogue"), DeviceKind.CPU: ("rapl", "catalogue")}


@dataclass(frozen=True, slots=True)
class OpenedMeter:
    """`why` is one sentence for the log and for `doctor`: what was tried, and what is used."""

    name: str
    meter: PowerMeter
    why: str

    @property
    def source(self) -> EnergySource:
        return self.meter.source


def open_meter(
    context: MeterContext, kind: DeviceKind = DeviceKind.CPU, *, share: float = 1.0, prefer: str = "auto"
) -> OpenedMeter:
    """Open `prefer`, or for "auto" the best meter that works.

    context.watts is the worker's own draw; a measured meter sees the whole machine, of which `share` is the worker's.
    A meter named by the user that does not work is a ResourceError, not a reason to take another.
    """
    assert 0 < share <= 1, f"share {share}"
    refused: list[str] = []
    for name in _BEST_FIRST[kind] if prefer == "auto" else (prefer,):
        try:
            meter = METERS.load(name)(context)
        except MeterUnavailable as error:
            refused.append(f"{name}: {error}")
            continue
        return _opened(name, meter, share, refused, context.watts)
    raise ResourceError(f"power meter {prefer!r} does not work here: {'; '.join(refused)}; use auto or catalogue")


def _opened(name: str, meter: PowerMeter, share: float, refused: list[str], watts: float) -> OpenedMeter:
    is_measured = meter.source is EnergySource.MEASURED
    if is_measured and share < 1:
        meter = SharedMeter(meter, share)
    part = f", of which this worker owns {share:.0%}" if is_measured and share < 1 else ""
    what = f"measured{part}" if is_measured else f"modelled as {watts:g} W x time"
    why = f"energy by {name}: {what}"
    return OpenedMeter(name, meter, f"{why} ({'; '.join(refused)})" if refused else why)
