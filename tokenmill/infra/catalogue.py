"""The device catalogue: built-in entries plus a user's own, looked up by key or by driver name.

Not responsible for: finding out what this machine is (infra/devices), or turning prices into a bill (cost/rates).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from tokenmill.core.errors import ConfigError
from tokenmill.infra.catalogue_parse import Fields, build_spec, merge_entries, parse_entries
from tokenmill.infra.device_spec import DeviceSpec

ENV_VAR = "TOKENMILL_CATALOGUE"
_BUILTIN = "catalogue.toml"


class Catalogue:
    """Devices by key, in file order."""

    def __init__(self, devices: Mapping[str, DeviceSpec]) -> None:
        self.devices = dict(devices)

    def get(self, key: str) -> DeviceSpec:
        """The entry called `key` (case and `-` or `_` do not matter); ConfigError with the nearest name."""
        normal = key.strip().lower().replace("-", "_")
        if normal in self.devices:
            return self.devices[normal]
        near = difflib.get_close_matches(normal, self.devices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"device {key!r} is not in the catalogue: {hint}possible: {', '.join(self.devices)}; "
            f"or add your own in a TOML file named by {ENV_VAR}"
        )

    def find_nvml(self, driver_name: str) -> DeviceSpec | None:
        """The entry of a GPU by the exact name its driver reports (an H100 PCIe is not an H100 SXM)."""
        wanted = driver_name.casefold()
        return next((s for s in self.devices.values() if wanted in [n.casefold() for n in s.nvml_names]), None)


def load_catalogue(path: str | Path | None = None, *, environ: Mapping[str, str] = os.environ) -> Catalogue:
    """The built-in entries, overridden and extended by `path`, or by the file that TOKENMILL_CATALOGUE names."""
    user = path or environ.get(ENV_VAR)
    if not user:
        return _build(_builtin_entries(), _BUILTIN)
    return _build(merge_entries(_builtin_entries(), parse_entries(_read(Path(user)), str(user))), str(user))


def _build(entries: Mapping[str, Fields], file: str) -> Catalogue:
    return Catalogue({key: build_spec(key, given, file) for key, given in entries.items()})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"catalogue {path} cannot be read: {error}: give another path or unset {ENV_VAR}") from None


@cache
def _builtin_entries() -> dict[str, Fields]:
    return parse_entries(resources.files("tokenmill.infra").joinpath(_BUILTIN).read_text(encoding="utf-8"), _BUILTIN)
