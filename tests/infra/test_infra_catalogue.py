"""The device catalogue: built-in figures with origin, a user's file, and every fault it can have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.infra.catalogue import ENV_VAR, Catalogue, load_catalogue
from tokenmill.infra.device_spec import DeviceKind, DeviceSpec, Figure, PriceKind

BUILTIN = load_catalogue(environ={})
KEYS = (
    *("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200_nvl72", "gb300_nvl72"),
    *("mi300x", "mi325x", "mi355x", "l40s", "rtx_pro_6000", "cpu_server"),
)


def figures(spec: DeviceSpec) -> list[Figure]:
    plain = [getattr(spec, f.name) for f in fields(spec)]
    return [f for f in plain if isinstance(f, Figure)] + list((spec.flops_per_s or {}).values())


def test_devices_of_the_catalogue() -> None:
    assert tuple(BUILTIN.devices) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_every_figure_has_source_and_date(key: str) -> None:
    spec = BUILTIN.get(key)
    assert len(figures(spec)) >= 5
    for figure in (*figures(spec), *spec.prices):
        assert figure.source
        assert figure.as_of[:2] == "20"
    assert spec.all_in_w is not None and spec.tdp_w is not None
    assert spec.tdp_w.value < spec.all_in_w.value
    assert spec.price() is not None


@pytest.mark.parametrize("key", KEYS)
def test_lower_precision_is_never_slower(key: str) -> None:
    flops = BUILTIN.get(key).flops_per_s
    assert flops is not None
    rates = [flops[d].value for d in ("bf16", "fp8", "fp4") if d in flops]
    assert rates == sorted(rates)


def test_figures_are_in_base_units() -> None:
    gb300 = BUILTIN.get("gb300_nvl72")
    assert gb300.memory_bytes.value == 288e9
    assert gb300.memory_bytes_per_s is not None and gb300.memory_bytes_per_s.value == 8e12
    assert gb300.flops_per_s is not None and gb300.flops_per_s["fp4"].value == 15e15
    assert gb300.scale_out_bytes_per_s is not None and gb300.scale_out_bytes_per_s.value == 1e11
    assert gb300.domain_size == 72


def test_prices_are_dated_and_old_ones_are_kept() -> None:
    b200 = BUILTIN.get("b200_sxm")
    assert b200.price(PriceKind.OWN).usd_per_hour == 1.73  # type: ignore[union-attr]
    assert b200.price(PriceKind.OWN, on="2026-05").usd_per_hour == 1.95  # type: ignore[union-attr]
    assert b200.price(PriceKind.OWN, on="2026-07-15").usd_per_hour == 1.73  # type: ignore[union-attr]
    assert b200.price(PriceKind.OWN, on="2020-01") is None


def test_a_month_includes_its_days() -> None:
    l40s = BUILTIN.get("l40s")
    assert l40s.price(on="2026-06") is not None
    assert l40s.price(on="2026-06-22") is None


def test_default_price_is_rental_then_on_demand() -> None:
    assert BUILTIN.get("h100_sxm").price().kind is PriceKind.RENT  # type: ignore[union-attr]
    assert BUILTIN.get("cpu_server").price().kind is PriceKind.ON_DEMAND  # type: ignore[union-attr]
    assert BUILTIN.get("cpu_server").price(PriceKind.OWN) is None


def test_estimates_are_marked() -> None:
    cpu, h100 = BUILTIN.get("cpu_server"), BUILTIN.get("h100_sxm")
    assert cpu.price().is_estimated and cpu.all_in_w.is_estimated  # type: ignore[union-attr]
    assert not h100.price().is_estimated and not h100.all_in_w.is_estimated  # type: ignore[union-attr]


@pytest.mark.parametrize("spelling", ["gb300_nvl72", "GB300-NVL72", " gb300-nvl72 "])
def test_lookup_forgives_spelling(spelling: str) -> None:
    assert BUILTIN.get(spelling).key == "gb300_nvl72"


def test_unknown_device_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h100_sxm'"):
        BUILTIN.get("h100_smx")
    with pytest.raises(ConfigError, match="possible: h100_sxm, h200_sxm"):
        BUILTIN.get("quantum_abacus")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("nvidia h200", "h200_sxm"),
        ("NVIDIA GB200", "gb200_nvl72"),
        ("NVIDIA B200", "b200_sxm"),
    ],
)
def test_driver_names(name: str, key: str) -> None:
    spec = BUILTIN.find_nvml(name)
    assert spec is not None and spec.key == key


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "NVIDIA H200 NVL", "Tesla T4", ""])
def test_a_similar_gpu_is_not_taken_for_it(name: str) -> None:
    assert BUILTIN.find_nvml(name) is None


# -- a user's file --

OURS = """
[devices.h100_sxm]
source = "our contract"
as_of = "2026-09"
tflops = { fp8 = 1500 }
all_in_w = 1000
prices = [{ kind = "rent", usd_per_hour = 1.75 }]

[devices.abacus]
name = "Abacus"
kind = "cpu"
domain_size = 1
num_cores = 10
source = "attic"
as_of = 2026-10-01
memory_gb = 0.001
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Catalogue]:
    def load_text(text: str) -> Catalogue:
        (tmp_path / "mine.toml").write_text(text)
        return load_catalogue(tmp_path / "mine.toml", environ={})

    return load_text


def test_override_field_by_field(load: Callable[[str], Catalogue]) -> None:
    h100 = load(OURS).get("h100_sxm")
    assert h100.flops_per_s is not None
    assert h100.flops_per_s["fp8"] == Figure(1.5e15, "our contract", "2026-09")
    assert h100.flops_per_s["bf16"].value == 989e12  # not named by the file
    assert h100.all_in_w == Figure(1000.0, "our contract", "2026-09")
    assert h100.tdp_w is not None and h100.tdp_w.source != "our contract"
    assert [p.usd_per_hour for p in h100.prices] == [1.75]
    assert BUILTIN.get("h100_sxm").flops_per_s["fp8"].value == 1979e12  # type: ignore[index]


def test_new_entry(load: Callable[[str], Catalogue]) -> None:
    abacus = load(OURS).get("abacus")
    assert abacus.kind is DeviceKind.CPU
    assert abacus.memory_bytes == Figure(1e6, "attic", "2026-10-01")
    assert (abacus.num_cores, abacus.domain_size) == (10.0, 1)
    assert abacus.price() is None


def test_environment_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OURS)
    assert "abacus" in load_catalogue(environ={ENV_VAR: str(tmp_path / "mine.toml")}).devices


def test_the_argument_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OURS)
    assert "abacus" in load_catalogue(tmp_path / "mine.toml", environ={ENV_VAR: "/no/such/file"}).devices


HEAD = '[devices.h100_sxm]\nsource = "s"\nas_of = "2026-09"\n'
FAULTS = [
    ("[devices", "is not TOML"),
    ("[device.x]\n", "key 'device' is unknown: did you mean 'devices'"),
    ('[sources.a]\ntitle = "x"\nas_of = "soon"\n', "sources.a.as_of: as_of='soon' is not a date"),
    ('[sources.a]\nas_of = "2026-01"\n', "sources.a.title: None is not a text"),
    (HEAD + "tdp = 700\n", "devices.h100_sxm: key 'tdp' is unknown: did you mean 'tdp_w'"),
    (HEAD + "tdp_w = -700\n", "devices.h100_sxm.tdp_w: -700 is not a positive number"),
    (HEAD + "tdp_w = nan\n", "not a positive number"),
    (HEAD + "tdp_w = true\n", "True is not a positive number"),
    (HEAD + 'tdp_w = "700"\n', "'700' is not a positive number"),
    (HEAD + "tdp_w = { source = 'x', as_of = '2026-01' }\n", "None is not a positive number"),
    (HEAD + "tdp_w = { value = 1, vlaue = 2 }\n", "did you mean 'value'"),
    (HEAD + "tdp_w = { value = 1, estimated = 'yes' }\n", "must be true or false"),
    (HEAD + "tdp_w = { value = 1, source = 'elsewhere' }\n", "has no source and date"),
    ("[devices.h100_sxm]\ntdp_w = 700\n", "devices.h100_sxm.tdp_w: has no source and date"),
    (HEAD + "tflops = 989\n", "989 is not a table"),
    (HEAD + "tflops = { bf16 = 0 }\n", "devices.h100_sxm.tflops.bf16: 0 is not a positive number"),
    (HEAD + "prices = { kind = 'rent' }\n", "is not a list"),
    (HEAD + "prices = [{ kind = 'gift', usd_per_hour = 1 }]\n", "prices[0].kind: 'gift' is unknown; possible: own"),
    (HEAD + "prices = [{ kind = 'rent', usd_per_hour = -1 }]\n", "prices[0].usd_per_hour: -1 is not a positive number"),
    (HEAD + "prices = [{ kind = 'rent' }]\n", "prices[0].usd_per_hour: None is not a positive number"),
    (HEAD + "kind = 'tpu'\n", "'tpu' is unknown; possible: gpu, cpu"),
    (HEAD + "domain_size = 1.5\n", "1.5 is not a whole number"),
    (HEAD + "name = ''\n", "is not a text"),
    (HEAD + "nvml_names = [1]\n", "1 is not a text"),
    ('[devices.new]\nkind = "gpu"\n', "devices.new is new but lacks name, domain_size, memory_bytes"),
    ("devices = 3\n", "3 is not a table"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_faults_name_file_path_and_remedy(load: Callable[[str], Catalogue], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert message in caught.value.message
    assert "mine.toml" in caught.value.message


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"/no/such\.toml cannot be read.*unset TOKENMILL_CATALOGUE"):
        load_catalogue("/no/such.toml", environ={})


def test_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_catalogue(tmp_path / "bad.toml", environ={})
