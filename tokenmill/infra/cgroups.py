"""What the control groups of this process grant: CPU cores and memory, for cgroup v1, v2 and mixtures.

A limit may sit on any ancestor, so every level up to the mount is read and the tightest counts. In a container
whose own path is not visible under the mount, the mount itself is the container's group.
Not responsible for: what the machine has beyond the groups (infra/devices, infra/memory).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: cgroup v1 writes "no limit" as the largest page-aligned int64.
_V1_UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One level that limits memory. `used_bytes` leaves out file cache that the kernel would give back at once."""

    limit_bytes: int
    used_bytes: int


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """CPU seconds per second that the tightest group grants; None without a limit."""
    quotas = [q for level in _levels(root, "cpu") if (q := _cpu_quota(level)) is not None]
    return min(quotas, default=None)


def memory_groups(root: Path = Path("/")) -> list[MemoryGroup]:
    """Every level that limits memory, innermost first."""
    return [group for level in _levels(root, "memory") if (group := _memory_group(level)) is not None]


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's groups that exist, innermost first, for the v1 controller and for v2."""
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        if names == "":
            bases = [mount, mount / "unified"]
        elif controller in names.split(","):
            bases = [mount / controller, mount / names]
        else:
            continue
        for base in dict.fromkeys(bases):
            inner = base / path.lstrip("/")
            yield from (level for level in (inner, *inner.parents) if level.is_relative_to(base) and level.is_dir())


def _cpu_quota(level: Path) -> float | None:
    text = _read(level / "cpu.max")
    if text is not None:
        quota, period = text.split()
        return None if quota == "max" else int(quota) / int(period)
    v1_quota, v1_period = _read_int(level / "cpu.cfs_quota_us"), _read_int(level / "cpu.cfs_period_us")
    return v1_quota / v1_period if v1_quota and v1_period and v1_quota > 0 else None


def _memory_group(level: Path) -> MemoryGroup | None:
    limit = _read_int(level / "memory.max")
    if limit is not None:
        return _group(level, limit, "memory.current", "inactive_file")
    limit = _read_int(level / "memory.limit_in_bytes")
    if limit is not None and limit < _V1_UNLIMITED_BYTES:
        return _group(level, limit, "memory.usage_in_bytes", "total_inactive_file")
    return None


def _group(level: Path, limit: int, usage_file: str, cache_key: str) -> MemoryGroup:
    cached = 0
    for line in _lines(level / "memory.stat"):
        key, _, value = line.partition(" ")
        if key == cache_key:
            cached = int(value)
    return MemoryGroup(limit, max(0, (_read_int(level / usage_file) or 0) - cached))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    """None when the file is absent or says "max"."""
    text = _read(path)
    return int(text) if text and text != "max" else None


def _lines(path: Path) -> list[str]:
    return (_read(path) or "").splitlines()
