"""NVIDIA GPUs through NVML, where the optional pynvml package and a driver are there: names, memory, energy.

Loaded lazily: a machine without GPUs needs neither. Not responsible for: computing on the GPUs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.infra.meter import EnergySource, MeterContext, MeterUnavailable


@dataclass(frozen=True, slots=True)
class Gpu:
    """`index` as NVML counts, `name` as the driver reports it."""

    index: int
    name: str
    memory_bytes: int


class NvmlUnavailable(Exception):
    """No GPU can be seen; the message says why."""


def open_nvml(module: str = "pynvml") -> Any:
    """The initialised pynvml module; NvmlUnavailable when the package or the driver is missing."""
    try:
        nvml = importlib.import_module(module)
    except ImportError:
        raise NvmlUnavailable(f"package {module} is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML does not start: {error}") from None
    return nvml


def list_gpus(nvml: Any) -> tuple[Gpu, ...]:
    return tuple(_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))


def _describe(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.nvmlDeviceGetName(handle)
    return Gpu(index, name.decode() if isinstance(name, bytes) else name, nvml.nvmlDeviceGetMemoryInfo(handle).total)


class NvmlMeter:
    """Energy of the given GPUs (None: all), from the counters of their drivers."""

    source = EnergySource.MEASURED

    def __init__(self, nvml: Any, indices: Sequence[int] | None = None) -> None:
        chosen = range(nvml.nvmlDeviceGetCount()) if indices is None else indices
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in chosen]
        self._start_mj = self._read_mj()

    def read_joules(self) -> float:
        return (self._read_mj() - self._start_mj) / 1e3

    def _read_mj(self) -> int:
        """Millijoules since the drivers were loaded; 64 bits, so it does not wrap."""
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)


def open_nvml_meter(context: MeterContext) -> NvmlMeter:
    try:
        nvml = open_nvml(context.nvml_module)
    except NvmlUnavailable as error:
        raise MeterUnavailable(str(error)) from None
    try:
        meter = NvmlMeter(nvml, context.gpu_indices)
    except nvml.NVMLError as error:
        raise MeterUnavailable(f"the GPU has no energy counter: {error}") from None
    if not meter._handles:
        raise MeterUnavailable("NVML sees no GPU")
    return meter
