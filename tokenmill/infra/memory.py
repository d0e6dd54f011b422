"""Memory that this process may use and can still get, control groups respected.

Not responsible for: device (GPU) memory, and how the engine divides what it gets.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tokenmill.infra.cgroups import memory_groups


@dataclass(frozen=True, slots=True)
class HostMemory:
    """
    limit_bytes      the smallest of physical memory and the groups' limits
    available_bytes  what can be allocated without swapping or being killed, file cache counted as free
    """

    limit_bytes: int
    available_bytes: int


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """`root` is where /proc and /sys are found (tests)."""
    total, available = _physical(root)
    groups = memory_groups(root)
    return HostMemory(
        limit_bytes=min([total, *(g.limit_bytes for g in groups)]),
        available_bytes=max(0, min([available, *(g.limit_bytes - g.used_bytes for g in groups)])),
    )


def available_bytes() -> int:
    """What this process can still allocate here and now."""
    return read_host_memory().available_bytes


def _physical(root: Path) -> tuple[int, int]:
    """(total, available) bytes of the machine; without /proc (macOS) what POSIX tells, free taken as all."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    kib = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines) if rest.split()}
    return kib["MemTotal"] * 1024, kib.get("MemAvailable", kib["MemFree"]) * 1024
