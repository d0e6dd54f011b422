"""Read a Hugging Face config field by field: typed, with the field's path in every complaint. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from tokenmill.core.errors import CheckpointError


class ConfigReader:
    """Wraps the dict of a config.json; `source` is named in messages.

    Every field that is read is remembered, so that a model can refuse fields it has never looked at.
    """

    def __init__(self, config: dict[str, Any], source: str | Path) -> None:
        self._config = config
        self._source = source

    def __contains__(self, name: str) -> bool:
        return self._config.get(name) is not None

    def fail(self, name: str, possible: str) -> NoReturn:
        value = self._config.get(name)
        what = "is missing" if value is None else f"={value!r} is not supported"
        raise CheckpointError(f"{self._source}: config.{name} {what}: possible: {possible}".replace(" =", "="))

    def integer(self, name: str, default: int | None = None, *, low: int = 1) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            self.fail(name, f"an integer from {low} up")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            self.fail(name, "a number above 0")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            self.fail(name, "true or false")
        return value

    def choice(self, name: str, possible: Iterable[Any], default: Any = None) -> Any:
        value, possible = self._get(name, default), list(possible)
        if value not in possible:
            self.fail(name, ", ".join(repr(p) for p in possible))
        return value

    def section(self, name: str) -> ConfigReader:
        """A nested object, read by the same rules; empty when absent."""
        value = self._config.get(name)
        if value is not None and not isinstance(value, dict):
            self.fail(name, "an object")
        return _Section(value or {}, self._source, name)

    def raw(self, name: str, default: Any = None) -> Any:
        return self._get(name, default)

    def names(self) -> list[str]:
        """Fields that are present and not null."""
        return [name for name, value in self._config.items() if value is not None]

    def _get(self, name: str, default: Any) -> Any:
        value = self._config.get(name)
        return default if value is None else value


class _Section(ConfigReader):
    def __init__(self, config: dict[str, Any], source: str | Path, path: str) -> None:
        super().__init__(config, source)
        self._path = path

    def fail(self, name: str, possible: str) -> NoReturn:
        ConfigReader({f"{self._path}.{name}": self._config.get(name)}, self._source).fail(
            f"{self._path}.{name}", possible
        )
