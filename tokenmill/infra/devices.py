"""What this machine is: cores and memory it grants to us, CPU features, GPUs; and its catalogue entry.

Not responsible for: measuring its speed (calibration), or for what it costs a worker (cost/rates).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from tokenmill.core.errors import ConfigError
from tokenmill.infra.catalogue import Catalogue
from tokenmill.infra.cgroups import cpu_quota_cores
from tokenmill.infra.device_spec import DeviceKind, DeviceSpec, Figure
from tokenmill.infra.memory import HostMemory, read_host_memory
from tokenmill.infra.nvml import Gpu, NvmlUnavailable, list_gpus, open_nvml

THIS_MACHINE = "this_machine"
CPU_SERVER = "cpu_server"
#: Instructions that decide which CPU kernels pay.
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm")


@dataclass(frozen=True, slots=True)
class Cpu:
    """
    num_cores    cores this process may run on (affinity)
    quota_cores  CPU seconds per second that its control groups grant; None: no limit
    features     of the instruction sets that matter here, those present
    """

    model_name: str
    num_cores: int
    quota_cores: float | None = None
    features: tuple[str, ...] = ()

    @property
    def granted_cores(self) -> float:
        return self.num_cores if self.quota_cores is None else min(self.num_cores, self.quota_cores)

    @property
    def num_threads(self) -> int:
        """Threads that can run without being throttled; at least one."""
        return max(1, int(self.granted_cores))


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpus_note` says why `gpus` is empty. `detected_on` is a date, YYYY-MM-DD."""

    cpu: Cpu
    memory: HostMemory
    gpus: tuple[Gpu, ...]
    gpus_note: str
    detected_on: str


def detect_machine(
    root: Path = Path("/"), *, affinity: Collection[int] | None = None, nvml_module: str = "pynvml"
) -> Machine:
    """Probe the machine; the arguments replace parts of it in tests."""
    try:
        gpus, note = list_gpus(open_nvml(nvml_module)), ""
    except NvmlUnavailable as error:
        gpus, note = (), str(error)
    return Machine(
        cpu=_detect_cpu(root, _affinity() if affinity is None else affinity),
        memory=read_host_memory(root),
        gpus=gpus,
        gpus_note=note if note or gpus else "NVML sees no GPU",
        detected_on=date.today().isoformat(),
    )


def machine_spec(machine: Machine, catalogue: Catalogue) -> DeviceSpec:
    """This machine's CPUs as a catalogue entry; an entry `this_machine` of the user's own wins.

    Price and watts are those of the catalogue's CPU server times our part of its cores: an estimate, marked so.
    """
    if THIS_MACHINE in catalogue.devices:
        return catalogue.devices[THIS_MACHINE]
    server, cores = catalogue.get(CPU_SERVER), machine.cpu.granted_cores
    if server.num_cores is None:
        raise ConfigError(f"catalogue entry {CPU_SERVER} lacks num_cores: this machine cannot be priced by its part")
    part = cores / server.num_cores
    note = f"{server.name} x {cores:g}/{server.num_cores:g} cores"
    return DeviceSpec(
        key=THIS_MACHINE,
        name=f"this machine: {machine.cpu.model_name}, {cores:g} cores",
        kind=DeviceKind.CPU,
        domain_size=1,
        num_cores=cores,
        memory_bytes=Figure(machine.memory.limit_bytes, "detected", machine.detected_on),
        tdp_w=_scaled(server.tdp_w, part, note),
        all_in_w=_scaled(server.all_in_w, part, note),
        prices=tuple(
            replace(p, usd_per_hour=p.usd_per_hour * part, is_estimated=True, note=note) for p in server.prices
        ),
    )


def gpu_spec(gpu: Gpu, catalogue: Catalogue) -> DeviceSpec:
    """The catalogue entry of a GPU; ConfigError when no entry has the driver's name for it."""
    spec = catalogue.find_nvml(gpu.name)
    if spec is None:
        raise ConfigError(
            f"GPU {gpu.name!r} is not in the catalogue: give --price-per-hour and --watts, "
            "or add an entry with this name among its nvml_names"
        )
    return spec


def _scaled(figure: Figure | None, part: float, note: str) -> Figure | None:
    return figure and replace(figure, value=figure.value * part, is_estimated=True, note=note)


def _affinity() -> Collection[int]:
    """macOS has no affinity; there all cores are ours."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _detect_cpu(root: Path, affinity: Collection[int]) -> Cpu:
    info = _cpuinfo(root)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    name = info.get("model name") or platform.processor() or platform.machine()
    return Cpu(name, len(affinity), cpu_quota_cores(root), tuple(f for f in _FEATURES if f in flags))


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is none."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
