"""Power meters: one conformance suite for all, RAPL's zones and wrap-around, and how the best is chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.clock import ManualClock
from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.infra.device_spec import DeviceKind
from tokenmill.infra.meter import CatalogueMeter, EnergySource, MeterContext, MeterUnavailable, PowerMeter, SharedMeter
from tokenmill.infra.nvml import NvmlMeter
from tokenmill.infra.power import METERS, open_meter
from tokenmill.infra.rapl import RaplMeter, open_rapl_meter

MakeRoot = Callable[[dict[str, str]], Path]
RANGE_UJ = 262_143_328_850
CAP = "sys/class/powercap"


def zone(path: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ) -> dict[str, str]:
    return {
        f"{CAP}/{path}/name": name + "\n",
        f"{CAP}/{path}/energy_uj": f"{energy_uj}\n",
        f"{CAP}/{path}/max_energy_range_uj": f"{range_uj}\n",
    }


TWO_SOCKETS = (
    zone("intel-rapl:0", "package-0", 1_000_000)
    | zone("intel-rapl:0:0", "core", 500_000)
    | zone("intel-rapl:0:1", "dram", 200_000)
    | zone("intel-rapl:1", "package-1", 3_000_000)
    | zone("intel-rapl:1:0", "dram", 0)
    | zone("intel-rapl:2", "psys", 9_000_000)
    | zone("intel-rapl-mmio:0", "package-0", 1_000_000)
)


def set_energy(root: Path, path: str, energy_uj: int) -> None:
    (root / CAP / path / "energy_uj").write_text(f"{energy_uj}\n")


# -- conformance: every meter, whatever it reads --

Rig = tuple[PowerMeter, Callable[[float], None], EnergySource]


@pytest.fixture(params=["catalogue", "rapl", "nvml", "shared"])
def rig(request: pytest.FixtureRequest, make_root: MakeRoot, fake_nvml: Any) -> Rig:
    """(meter, let it see so many joules, expected source)"""
    clock = ManualClock(100.0)
    if request.param in ("catalogue", "shared"):
        watts = CatalogueMeter(50.0, clock)
        if request.param == "catalogue":
            return watts, lambda joules: clock.advance(joules / 50.0), EnergySource.MODELLED
        return SharedMeter(watts, 0.5), lambda joules: clock.advance(joules / 25.0), EnergySource.MODELLED
    if request.param == "nvml":
        return NvmlMeter(fake_nvml), lambda joules: fake_nvml.draw(1, int(joules * 1e3)), EnergySource.MEASURED
    root = make_root(TWO_SOCKETS)
    energy = [3_000_000]

    def draw(joules: float) -> None:
        energy[0] += int(joules * 1e6)
        set_energy(root, "intel-rapl:1", energy[0])

    return RaplMeter(root), draw, EnergySource.MEASURED


def test_meter_conformance(rig: Rig) -> None:
    """Cumulative from 0 at opening, never falling, in joules, with its source told."""
    meter, draw, source = rig
    assert meter.source is source
    assert meter.read_joules() == pytest.approx(0.0)
    draw(10.0)
    assert meter.read_joules() == pytest.approx(10.0)
    assert meter.read_joules() == pytest.approx(10.0)
    draw(2.5)
    assert meter.read_joules() == pytest.approx(12.5)


# -- RAPL --


def test_packages_and_dram_are_added_and_parts_are_not(make_root: MakeRoot) -> None:
    root = make_root(TWO_SOCKETS)
    meter = RaplMeter(root)
    for path, grown in [
        ("intel-rapl:0", 1_000_000 + 4_000_000),
        ("intel-rapl:0:0", 500_000 + 3_000_000),  # inside package-0
        ("intel-rapl:0:1", 200_000 + 1_000_000),
        ("intel-rapl:2", 9_000_000 + 90_000_000),  # contains the packages
        ("intel-rapl-mmio:0", 1_000_000 + 4_000_000),  # the same package again
    ]:
        set_energy(root, path, grown)
    assert meter.read_joules() == pytest.approx(5.0)


def test_wrap_around(make_root: MakeRoot) -> None:
    root = make_root(zone("intel-rapl:0", "package-0", 990, range_uj=999))
    meter = RaplMeter(root)
    set_energy(root, "intel-rapl:0", 10)  # 990 .. 999, then 0 .. 10
    assert meter.read_joules() == pytest.approx(20e-6)
    set_energy(root, "intel-rapl:0", 5)
    assert meter.read_joules() == pytest.approx(20e-6 + 995e-6)


def test_psys_serves_where_there_is_no_package(make_root: MakeRoot) -> None:
    root = make_root(zone("intel-rapl:0", "psys", 0))
    meter = RaplMeter(root)
    set_energy(root, "intel-rapl:0", 2_000_000)
    assert meter.read_joules() == pytest.approx(2.0)


def context(root: Path, nvml: str = "no_such_nvml_module") -> MeterContext:
    return MeterContext(watts=11.5, clock=ManualClock(), root=root, nvml_module=nvml)


def test_rapl_is_refused_with_a_reason(make_root: MakeRoot, tmp_path: Path) -> None:
    with pytest.raises(MeterUnavailable, match="does not exist"):
        open_rapl_meter(context(tmp_path))
    (tmp_path / CAP).mkdir(parents=True)
    with pytest.raises(MeterUnavailable, match="no RAPL package"):
        open_rapl_meter(context(tmp_path))
    root = make_root(zone("intel-rapl:0", "package-0", 0))
    (root / CAP / "intel-rapl:0" / "energy_uj").unlink()
    (root / CAP / "intel-rapl:0" / "energy_uj").mkdir()  # reading fails for every user, root included
    with pytest.raises(MeterUnavailable, match="intel-rapl:0 cannot be read"):
        open_rapl_meter(context(root))


# -- the choice --


def test_cpu_prefers_rapl(make_root: MakeRoot) -> None:
    opened = open_meter(context(make_root(TWO_SOCKETS)), share=0.5)
    assert (opened.name, opened.source) == ("rapl", EnergySource.MEASURED)
    assert "of which this worker owns 50%" in opened.why


def test_a_share_of_a_measured_meter(make_root: MakeRoot) -> None:
    """Each of n workers owns 1/n of what the machine draws: together they must not count it n times."""
    root = make_root(TWO_SOCKETS)
    meters = [open_meter(context(root), share=0.25).meter for _ in range(4)]
    set_energy(root, "intel-rapl:1", 3_000_000 + 8_000_000)
    assert sum(meter.read_joules() for meter in meters) == pytest.approx(8.0)


def test_without_rapl_watts_are_multiplied_and_the_reason_is_told(tmp_path: Path) -> None:
    opened = open_meter(context(tmp_path), share=0.5)
    assert (opened.name, opened.source) == ("catalogue", EnergySource.MODELLED)
    assert "modelled as 11.5 W x time (rapl: " in opened.why  # the worker's own watts, not halved again


def test_gpu_prefers_nvml(tmp_path: Path, fake_nvml: Any) -> None:
    opened = open_meter(context(tmp_path, "fake_nvml_module"), DeviceKind.GPU)
    assert (opened.name, opened.source) == ("nvml", EnergySource.MEASURED)
    fake_nvml.draw(0, 1500)
    assert opened.meter.read_joules() == pytest.approx(1.5)


@pytest.mark.parametrize(("error_at", "why"), [("init", "NVML does not start"), ("energy", "no energy counter")])
def test_gpu_without_a_counter(tmp_path: Path, fake_nvml: Any, error_at: str, why: str) -> None:
    fake_nvml.error_at = error_at
    opened = open_meter(context(tmp_path, "fake_nvml_module"), DeviceKind.GPU)
    assert opened.name == "catalogue"
    assert why in opened.why


def test_gpu_machine_without_gpus(tmp_path: Path, fake_nvml: Any) -> None:
    fake_nvml.devices.clear()
    assert "NVML sees no GPU" in open_meter(context(tmp_path, "fake_nvml_module"), DeviceKind.GPU).why


def test_only_the_workers_own_gpus(fake_nvml: Any) -> None:
    meter = NvmlMeter(fake_nvml, [1])
    fake_nvml.draw(0, 9_000)
    fake_nvml.draw(1, 1_000)
    assert meter.read_joules() == pytest.approx(1.0)


def test_a_meter_named_by_the_user_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="power meter 'rapl' does not work here"):
        open_meter(context(tmp_path), prefer="rapl")
    assert open_meter(context(tmp_path), prefer="catalogue").why == "energy by catalogue: modelled as 11.5 W x time"


def test_unknown_meter(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'rapl'"):
        open_meter(context(tmp_path), prefer="rappl")
    assert METERS.names() == ["catalogue", "nvml", "rapl"]
