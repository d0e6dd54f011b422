"""Types of the device catalogue: figures with their origin, dated prices, one device.

Not responsible for: reading files (catalogue_parse), looking entries up (catalogue), probing a machine (devices).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    GPU = "gpu"
    CPU = "cpu"


class PriceKind(StrEnum):
    OWN = "own"
    RENT = "rent"
    ON_DEMAND = "on_demand"
    SPOT = "spot"


#: What somebody pays who said nothing: a rental, else what else is known.
_DEFAULT_ORDER = (PriceKind.RENT, PriceKind.ON_DEMAND, PriceKind.OWN, PriceKind.SPOT)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its origin. `as_of` is YYYY-MM or YYYY-MM-DD; `is_estimated`: nobody published it."""

    value: float
    source: str
    as_of: str
    is_estimated: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per device-hour at a date; the other fields as in Figure."""

    kind: PriceKind
    usd_per_hour: float
    source: str
    as_of: str
    is_estimated: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device; for a CPU the device is the machine. None: unknown, to be measured.

    flops_per_s             dense peak by dtype (bf16, fp8, fp4, int8)
    usable_memory_bytes     what programs can use where that is known to be less than memory_bytes
    memory_bytes_per_s      peak of HBM or DRAM
    domain_size             devices joined by the scale-up links
    scale_up_bytes_per_s    per device, one direction
    scale_out_bytes_per_s   network share of one device
    host_link_bytes_per_s   to host memory, per device, one direction; `host_link` says what (pcie5, nvlink_c2c)
    tdp_w                   the chip; all_in_w: with its share of host and network; utility_w: with the facility's
    num_cores               CPUs only; a fraction where a quota grants one
    nvml_names              names under which the NVIDIA driver reports it
    """

    key: str
    name: str
    kind: DeviceKind
    domain_size: int
    memory_bytes: Figure
    memory_bytes_per_s: Figure | None = None
    usable_memory_bytes: Figure | None = None
    flops_per_s: Mapping[str, Figure] | None = None
    scale_up_bytes_per_s: Figure | None = None
    scale_out_bytes_per_s: Figure | None = None
    host_link: str | None = None
    host_link_bytes_per_s: Figure | None = None
    tdp_w: Figure | None = None
    all_in_w: Figure | None = None
    utility_w: Figure | None = None
    prices: tuple[Price, ...] = ()
    num_cores: float | None = None
    nvml_names: tuple[str, ...] = ()

    def price(self, kind: PriceKind | None = None, *, on: str | None = None) -> Price | None:
        """The newest price of `kind` no later than `on` (YYYY-MM[-DD]; a month includes all its days).

        kind None: rent, else on_demand, own, spot. None when there is no such price.
        """
        for wanted in (kind,) if kind else _DEFAULT_ORDER:
            dated = [p for p in self.prices if p.kind is wanted and _is_by(p.as_of, on)]
            if dated:
                return max(dated, key=lambda p: p.as_of)
        return None


def _is_by(as_of: str, on: str | None) -> bool:
    """ISO dates compare as text; a month is a prefix of its days."""
    return on is None or as_of <= on or as_of.startswith(on)
