"""Fake machines: files under a temporary root, and an NVML module without a driver."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

MakeRoot = Callable[[dict[str, str]], Path]


@pytest.fixture
def make_root(tmp_path: Path) -> MakeRoot:
    """Write files ("proc/meminfo": text, ...) under a fresh root and return it."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


class FakeNvml(types.ModuleType):
    """The calls of pynvml that are used here; a device is (name, bytes, millijoules)."""

    class NVMLError(Exception):
        pass

    def __init__(self, name: str, devices: list[tuple[str | bytes, int, int]]) -> None:
        super().__init__(name)
        self.devices = devices
        self.error_at: str | None = None

    def _maybe_fail(self, where: str) -> None:
        if self.error_at == where:
            raise self.NVMLError("Not Supported")

    def nvmlInit(self) -> None:
        self._maybe_fail("init")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return self.devices[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=self.devices[handle][1])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self._maybe_fail("energy")
        return self.devices[handle][2]

    def draw(self, index: int, millijoules: int) -> None:
        name, num_bytes, energy = self.devices[index]
        self.devices[index] = (name, num_bytes, energy + millijoules)


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Importable as `fake_nvml_module`, with two GPUs."""
    module = FakeNvml("fake_nvml_module", [("NVIDIA H200", 141 * 10**9, 5_000), (b"NVIDIA H200", 141 * 10**9, 7_000)])
    monkeypatch.setitem(sys.modules, "fake_nvml_module", module)
    return module
