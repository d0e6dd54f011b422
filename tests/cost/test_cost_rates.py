"""Rates: flags before catalogue, each worker its share, and where every figure came from."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.cost.rates import DeviceRate, resolve_rate
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.infra.device_spec import DeviceKind, DeviceSpec, Figure, PriceKind
from tokenmill.infra.meter import EnergySource

H200 = load_catalogue(environ={}).get("h200_sxm")
BARE = DeviceSpec("bare", "Bare", DeviceKind.CPU, 1, Figure(1e9, "s", "2026-01"))


def test_flags_are_the_whole_machine_and_a_worker_owns_its_share() -> None:
    rate = resolve_rate(3.6, 100.0, 0.25)
    assert (rate.usd_per_hour, rate.watts) == (0.9, 25.0)
    assert rate.usd(3600) == pytest.approx(0.9)
    assert rate.joules(10) == pytest.approx(250.0)
    assert rate.source == "price: --price-per-hour; watts: --watts"
    assert not rate.is_estimated
    assert rate.energy_source is EnergySource.MODELLED


def test_catalogue_entry() -> None:
    rate = resolve_rate(spec=H200)
    assert (rate.usd_per_hour, rate.watts) == (2.90, 1370.0)
    assert "rent, SemiAnalysis InferenceX" in rate.source and "2026-07" in rate.source
    assert not rate.is_estimated
    assert resolve_rate(spec=H200, price_kind=PriceKind.OWN).usd_per_hour == 1.22


def test_a_flag_overrides_only_its_own_figure() -> None:
    rate = resolve_rate(price_per_hour=1.0, spec=H200)
    assert (rate.usd_per_hour, rate.watts) == (1.0, 1370.0)
    assert rate.source.startswith("price: --price-per-hour; watts: SemiAnalysis")
    rate = resolve_rate(watts=1.0, spec=H200)
    assert (rate.usd_per_hour, rate.watts) == (2.90, 1.0)


def test_this_machine_by_default_is_an_estimate_by_cores() -> None:
    whole, half = resolve_rate(), resolve_rate(share=0.5)
    assert whole.is_estimated
    assert "/192 cores" in whole.source and whole.source.endswith("estimated")
    assert 0 < half.usd_per_hour == pytest.approx(whole.usd_per_hour / 2)
    assert 0 < half.watts == pytest.approx(whole.watts / 2)


def test_zero_is_a_price() -> None:
    assert resolve_rate(0.0, 0.0) == DeviceRate(0.0, 0.0, source="price: --price-per-hour; watts: --watts")


@pytest.mark.parametrize("value", [-0.01, float("nan"), float("inf")])
def test_impossible_flags(value: float) -> None:
    with pytest.raises(ConfigError, match="--price-per-hour="):
        resolve_rate(value, 1.0)
    with pytest.raises(ConfigError, match="--watts="):
        resolve_rate(1.0, value)


def test_an_entry_without_price_or_watts() -> None:
    with pytest.raises(ConfigError, match=r"bare has no price \(it has: none\): give --price-per-hour"):
        resolve_rate(spec=BARE)
    with pytest.raises(ConfigError, match="bare has no watts: give --watts"):
        resolve_rate(1.0, spec=BARE)
    with pytest.raises(ConfigError, match=r"has no spot price \(it has: own, rent\)"):
        resolve_rate(spec=H200, price_kind=PriceKind.SPOT)


def test_chip_power_where_nothing_better_is_known() -> None:
    spec = DeviceSpec("d", "D", DeviceKind.GPU, 1, Figure(1e9, "s", "2026-01"), tdp_w=Figure(300.0, "s", "2026-01"))
    assert resolve_rate(1.0, spec=spec).watts == 300.0


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_impossible_share(share: float) -> None:
    with pytest.raises(AssertionError):
        resolve_rate(1.0, 1.0, share)
