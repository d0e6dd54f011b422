"""What a result needs to be comparable: machine, versions, commit. Not responsible for: its figures or settings."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import tokenmill
from tokenmill.infra.devices import detect_machine

_PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "aiohttp")


def describe_environment() -> dict[str, Any]:
    """Machine, versions and commit of this process."""
    machine = detect_machine()
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "tokenmill": tokenmill.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "cpu": machine.cpu.model_name,
        "num_cores": machine.cpu.granted_cores,
        "load_average_1m": os.getloadavg()[0],
        "memory_bytes": machine.memory.limit_bytes,
        "gpus": [gpu.name for gpu in machine.gpus],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the source tree this runs from, with a + when it has changes; None for an installed package."""
    folder = Path(tokenmill.__file__).resolve().parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
