"""What `tokenmill doctor` finds out. Every part stands alone: one that fails is reported and hides no other."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenmill
from tokenmill.core.errors import ResourceError, TokenmillError
from tokenmill.core.units import format_bytes

_PACKAGES = ("torch", "safetensors", "gguf", "tokenizers", "numpy", "pyzmq", "fastapi", "uvicorn", "transformers")
#: package -> why one wants it; the first group is needed to run a model here, the second is optional.
_NEEDED = {"torch": "models run on it", "safetensors": "model folders are read with it"}
_OPTIONAL = {"gguf": ".gguf files (such as the default model) are read with it"}


def diagnose() -> dict[str, Any]:
    """One JSON-able report; `missing` lists what must be installed or mended, `advice` what would be good to have."""
    machine, price, cache = _part(_machine), _part(_price), _part(_cache)
    needed = {"machine": machine, "price": price, "cache": cache}
    broken = [f"{title}: {part['error']}" for title, part in needed.items() if "error" in part]
    return {
        "tokenmill": tokenmill.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": machine,
        "price": price,
        "kernels": _part(_kernels),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "cache": cache,
        "missing": _absent(_NEEDED, "pip install 'tokenmill[engine]'") + broken,
        "advice": _absent(_OPTIONAL, "pip install 'tokenmill[gguf]'"),
    }


def render(report: dict[str, Any]) -> str:
    """The report as indented lines."""
    lines = [f"tokenmill {report['tokenmill']}, Python {report['python']}, {report['platform']}"]
    for title in ("machine", "price", "kernels", "versions", "cache"):
        lines.append(f"{title}:")
        lines += [f"  {key}: {_shown(value)}" for key, value in report[title].items()]
    for title in ("missing", "advice"):
        lines += [f"{title}: {text}" for text in report[title]]
    lines.append("nothing needed is missing" if not report["missing"] else "not ready: mend what is missing")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _part(find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return find()
    except (TokenmillError, ImportError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _machine() -> dict[str, Any]:
    from tokenmill.infra.devices import detect_machine

    machine = detect_machine()
    return {
        "cpu": machine.cpu.model_name,
        "cores": machine.cpu.granted_cores,
        "features": list(machine.cpu.features),
        "memory": format_bytes(machine.memory.limit_bytes),
        "available": format_bytes(machine.memory.available_bytes),
        "gpus": [gpu.name for gpu in machine.gpus] or [f"none ({machine.gpus_note})"],
        "c_compiler": shutil.which("cc") or shutil.which("gcc") or "none",
    }


def _price() -> dict[str, Any]:
    from tokenmill.core.clock import SystemClock
    from tokenmill.cost.rates import resolve_rate
    from tokenmill.infra.meter import MeterContext
    from tokenmill.infra.power import open_meter

    rate = resolve_rate()
    meter = open_meter(MeterContext(rate.watts, SystemClock()))
    return {
        "usd_per_hour": round(rate.usd_per_hour, 6),
        "watts": round(rate.watts, 3),
        "is_estimated": rate.is_estimated,
        "source": rate.source,
        "energy": meter.why,
    }


def _kernels() -> dict[str, Any]:
    from tokenmill.kernels.select import select_kernels

    kernels = select_kernels(deterministic=False)
    found = {op: f"{choice.name} ({choice.reason})" for op, choice in sorted(kernels.choices.items())}
    if kernels.native is None:
        return found
    return {"llama family": f"native ({kernels.native.reason})"} | {f"others, {op}": text for op, text in found.items()}


def _cache() -> dict[str, Any]:
    from tokenmill.core.paths import cache_folder
    from tokenmill.models.store import list_models

    folder = cache_folder("models")
    nearest = _existing(folder)
    if not (nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK)):
        raise ResourceError(f"{nearest} is no folder that can be read and written: set TOKENMILL_CACHE to another")
    return {
        "folder": str(folder),
        "free": format_bytes(shutil.disk_usage(nearest).free),
        "models": [model.spec for model in list_models() if model.is_local],
    }


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _absent(packages: dict[str, str], how: str) -> list[str]:
    return [f"{name}: {why}; {how}" for name, why in packages.items() if importlib.util.find_spec(name) is None]
