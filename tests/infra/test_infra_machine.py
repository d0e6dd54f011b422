"""What this machine grants: affinity, quotas and limits of control groups, CPU features, GPUs, its price."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.infra.catalogue import Catalogue, load_catalogue
from tokenmill.infra.cgroups import cpu_quota_cores, memory_groups
from tokenmill.infra.device_spec import DeviceKind
from tokenmill.infra.devices import Machine, detect_machine, gpu_spec, machine_spec
from tokenmill.infra.memory import available_bytes, read_host_memory
from tokenmill.infra.nvml import Gpu

MakeRoot = Callable[[dict[str, str]], Path]
MEMINFO = "MemTotal:  16000000 kB\nMemFree: 1000000 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 0\n"
CPUINFO = (
    "processor\t: 0\nmodel name\t: Frobnicator 9000\nflags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni\n\n"
    "processor\t: 1\nmodel name\t: Other\nflags\t\t: fpu\n"
)
BASE = {"proc/meminfo": MEMINFO, "proc/cpuinfo": CPUINFO}
NO_NVML = "no_such_nvml_module"


def detect(root: Path, num_cores: int = 8, nvml: str = NO_NVML) -> Machine:
    return detect_machine(root, affinity=range(num_cores), nvml_module=nvml)


def test_without_groups(make_root: MakeRoot) -> None:
    machine = detect(make_root(BASE))
    assert machine.cpu.model_name == "Frobnicator 9000"
    assert machine.cpu.features == ("avx2", "avx512f", "avx512_bf16", "avx512_vnni")
    assert (machine.cpu.num_cores, machine.cpu.granted_cores, machine.cpu.num_threads) == (8, 8, 8)
    assert machine.memory.limit_bytes == 16_000_000 * 1024
    assert machine.memory.available_bytes == 8_000_000 * 1024
    assert machine.gpus == ()
    assert machine.gpus_note == f"package {NO_NVML} is not installed"


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("1600000 100000", 16.0)],
)
def test_v2_cpu_quota(make_root: MakeRoot, cpu_max: str, cores: float | None) -> None:
    root = make_root(BASE | {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": cpu_max})
    assert cpu_quota_cores(root) == cores
    cpu = detect(root).cpu
    assert cpu.granted_cores == min(8, cores or 8)
    assert cpu.num_threads == max(1, int(min(8, cores or 8)))


def test_affinity_can_be_tighter_than_the_quota(make_root: MakeRoot) -> None:
    root = make_root(BASE | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000"})
    assert detect(root, num_cores=2).cpu.granted_cores == 2


def test_the_tightest_level_counts(make_root: MakeRoot) -> None:
    root = make_root(
        BASE
        | {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "100000 100000",
            "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
            "sys/fs/cgroup/a/memory.max": "4000000000",
            "sys/fs/cgroup/a/memory.current": "3000000000",
            "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 500000000\n",
            "sys/fs/cgroup/a/b/memory.max": "max",
        }
    )
    assert cpu_quota_cores(root) == 1.0
    memory = read_host_memory(root)
    assert memory.limit_bytes == 4_000_000_000
    assert memory.available_bytes == 1_500_000_000  # limit - (current - cache that can be dropped)


def test_v1_limits(make_root: MakeRoot) -> None:
    root = make_root(
        BASE
        | {
            "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/x\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "2000000000",
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "500000000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
        }
    )
    assert cpu_quota_cores(root) == 2.5
    assert [g.limit_bytes for g in memory_groups(root)] == [2_000_000_000]
    assert read_host_memory(root).available_bytes == 1_500_000_000


def test_v1_without_a_quota(make_root: MakeRoot) -> None:
    root = make_root(
        BASE
        | {
            "proc/self/cgroup": "1:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        }
    )
    assert cpu_quota_cores(root) is None


def test_in_a_container_the_mount_is_our_group(make_root: MakeRoot) -> None:
    """The path in /proc is the host's and is not there under the mount."""
    root = make_root(
        BASE | {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/memory.max": "1000000000"}
        | {"sys/fs/cgroup/memory.current": "2000000000"}
    )  # fmt: skip
    memory = read_host_memory(root)
    assert memory.limit_bytes == 1_000_000_000
    assert memory.available_bytes == 0  # over its limit already; never negative


def test_arm_features_and_unknown_cpu(make_root: MakeRoot) -> None:
    root = make_root({"proc/meminfo": MEMINFO, "proc/cpuinfo": "processor : 0\nFeatures : fp asimd bf16 i8mm\n"})
    cpu = detect(root).cpu
    assert cpu.features == ("bf16", "i8mm")
    assert cpu.model_name  # of the platform, as the file names none


def test_without_proc(tmp_path: Path) -> None:
    """macOS has no /proc; POSIX still tells the memory."""
    machine = detect(tmp_path)
    assert machine.memory.available_bytes == machine.memory.limit_bytes > 0
    assert machine.cpu.features == ()


def test_this_very_machine() -> None:
    machine = detect_machine()
    assert 0 < machine.cpu.granted_cores <= machine.cpu.num_cores
    assert 0 < machine.memory.available_bytes <= machine.memory.limit_bytes
    assert 0 < available_bytes() <= machine.memory.limit_bytes
    assert machine.gpus or machine.gpus_note


def test_gpus(make_root: MakeRoot, fake_nvml: Any) -> None:
    machine = detect(make_root(BASE), nvml="fake_nvml_module")
    assert machine.gpus == (Gpu(0, "NVIDIA H200", 141 * 10**9), Gpu(1, "NVIDIA H200", 141 * 10**9))
    assert machine.gpus_note == ""
    assert gpu_spec(machine.gpus[0], load_catalogue(environ={})).key == "h200_sxm"


def test_no_driver_and_no_gpu(make_root: MakeRoot, fake_nvml: Any) -> None:
    fake_nvml.devices.clear()
    assert detect(make_root(BASE), nvml="fake_nvml_module").gpus_note == "NVML sees no GPU"
    fake_nvml.error_at = "init"
    assert "Not Supported" in detect(make_root(BASE), nvml="fake_nvml_module").gpus_note


def test_unknown_gpu() -> None:
    with pytest.raises(ConfigError, match="'Tesla T4' is not in the catalogue: give --price-per-hour"):
        gpu_spec(Gpu(0, "Tesla T4", 16 * 10**9), load_catalogue(environ={}))


# -- this machine as a catalogue entry --


def test_price_and_watts_are_the_servers_part(make_root: MakeRoot) -> None:
    catalogue = load_catalogue(environ={})
    server, spec = catalogue.get("cpu_server"), machine_spec(detect(make_root(BASE), 2), catalogue)
    assert spec.kind is DeviceKind.CPU
    assert spec.num_cores == 2
    price, server_price = spec.price(), server.price()
    assert price is not None and server_price is not None and spec.all_in_w is not None and server.all_in_w is not None
    assert price.usd_per_hour == pytest.approx(server_price.usd_per_hour * 2 / 192)
    assert spec.all_in_w.value == pytest.approx(server.all_in_w.value * 2 / 192)
    assert price.is_estimated and spec.all_in_w.is_estimated
    assert "2/192 cores" in price.note
    assert spec.memory_bytes.value == 16_000_000 * 1024


def test_half_a_core_is_half_the_price(make_root: MakeRoot) -> None:
    root = make_root(BASE | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"})
    spec = machine_spec(detect(root), load_catalogue(environ={}))
    assert spec.price().usd_per_hour == pytest.approx(11.0 * 0.5 / 192)  # type: ignore[union-attr]


def test_an_entry_of_the_users_own_wins(make_root: MakeRoot, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[devices.this_machine]\nname = "mine"\nkind = "cpu"\ndomain_size = 1\nsource = "bill"\nas_of = "2026-09"\n'
        'memory_gb = 8\nprices = [{ kind = "own", usd_per_hour = 0.02 }]\n'
    )
    spec = machine_spec(detect(make_root(BASE)), load_catalogue(tmp_path / "mine.toml", environ={}))
    assert spec.name == "mine"
    assert not spec.price().is_estimated  # type: ignore[union-attr]


def test_a_server_without_cores_cannot_price_a_part(make_root: MakeRoot) -> None:
    builtin = load_catalogue(environ={})
    broken = Catalogue({"cpu_server": builtin.get("h100_sxm")})
    with pytest.raises(ConfigError, match="lacks num_cores"):
        machine_spec(detect(make_root(BASE)), broken)
