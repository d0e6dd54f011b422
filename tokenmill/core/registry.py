"""Named implementations of a seam: built-ins by import path (loaded lazily), others by entry point."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points
from typing import Any

from tokenmill.core.errors import ConfigError


class Registry:
    """
    seam      what is registered, for messages ("router policy")
    group     entry-point group that separate packages use, e.g. "tokenmill.router_policies"
    builtins  name -> "package.module:attribute"
    """

    def __init__(self, seam: str, group: str, builtins: dict[str, str]) -> None:
        self.seam = seam
        self.group = group
        self._builtins = builtins

    def names(self) -> list[str]:
        return sorted({*self._builtins, *(point.name for point in entry_points(group=self.group))})

    def load(self, name: str) -> Any:
        """The object called `name`; built-ins win over plug-ins of the same name. ConfigError when unknown."""
        if name in self._builtins:
            module, attribute = self._builtins[name].split(":")
            return getattr(importlib.import_module(module), attribute)
        for point in entry_points(group=self.group):
            if point.name == name:
                return point.load()
        near = difflib.get_close_matches(name, self.names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"{self.seam} {name!r} is unknown: {hint}possible: {', '.join(self.names())}")
