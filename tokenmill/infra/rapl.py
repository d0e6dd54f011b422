"""CPU and DRAM energy from the RAPL counters under /sys/class/powercap (Intel and AMD).

Covers the whole machine, other programs included. Not responsible for: sharing that among workers (meter.SharedMeter).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenmill.infra.meter import EnergySource, MeterContext, MeterUnavailable


@dataclass(slots=True)
class _Zone:
    """One counter. It wraps at `range_uj`; reads must come more often than it can (minutes at full power)."""

    path: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def advance(self) -> int:
        now_uj = _read_int(self.path / "energy_uj")
        step_uj = now_uj - self.last_uj
        self.total_uj += step_uj if step_uj >= 0 else step_uj + self.range_uj + 1
        self.last_uj = now_uj
        return self.total_uj


class RaplMeter:
    """Sum of all packages and their DRAM.

    `core` and `uncore` are parts of a package and `psys` contains the packages, so neither is added; psys serves
    where there is no package zone.
    """

    source = EnergySource.MEASURED

    def __init__(self, root: Path = Path("/")) -> None:
        self._zones = [_open_zone(path) for path in _choose_zones(root / "sys/class/powercap")]

    def read_joules(self) -> float:
        return sum(zone.advance() for zone in self._zones) / 1e6


def open_rapl_meter(context: MeterContext) -> RaplMeter:
    return RaplMeter(context.root)


def _choose_zones(folder: Path) -> list[Path]:
    """`intel-rapl-mmio:*` shows the same packages a second time and is left out."""
    if not folder.is_dir():
        raise MeterUnavailable(f"{folder} does not exist (virtual machine or container)")
    by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("intel-rapl:*")):
        by_name.setdefault(_zone_kind(path), []).append(path)
    packages = by_name.get("package", [])
    zones = packages + by_name.get("dram", []) if packages else by_name.get("psys", [])
    if not zones:
        raise MeterUnavailable(f"{folder} has no RAPL package")
    return zones


def _zone_kind(path: Path) -> str:
    return (path / "name").read_text(encoding="ascii").strip().partition("-")[0]


def _open_zone(path: Path) -> _Zone:
    try:
        return _Zone(path, _read_int(path / "max_energy_range_uj"), _read_int(path / "energy_uj"))
    except OSError as error:
        raise MeterUnavailable(
            f"{path.name} cannot be read ({error.strerror}; energy_uj is root's by default)"
        ) from None


def _read_int(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
