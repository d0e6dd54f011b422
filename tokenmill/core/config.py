"""Base of every configuration object: frozen, closed, and helpful when a key is unknown."""

from __future__ import annotations

import difflib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tokenmill.core.errors import ConfigError


class FrozenConfig(BaseModel):
    """One frozen object per layer, composed (never inherited) in recipes.DeploymentConfig."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def parse(cls, data: dict[str, Any], *, path: str = "") -> Self:
        """Validate `data`; a ConfigError names the field's path, and for an unknown key the nearest valid one."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(_explain(cls, error, path)) from None


def _explain(cls: type[BaseModel], error: ValidationError, path: str) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in ((path,) if path else ()) + tuple(first["loc"]))
    if first["type"] != "extra_forbidden":
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "value_error" and isinstance(
            first["input"], dict
        ):  # a rule between the fields of one object
            return f"setting {where}: {text}" if where else f"settings: {text}"
        return f"setting {where}={first.get('input')!r}: {text}"
    names = _names_at(cls, tuple(first["loc"][:-1]))
    near = difflib.get_close_matches(str(first["loc"][-1]), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(sorted(names))}"
    return f"setting {where} is unknown: {hint}"


def _names_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Field names valid at `loc` inside cls; list indices and union tags on the way are skipped."""
    for part in loc:
        field = cls.model_fields.get(str(part))
        if field is None:
            continue
        inner = [a for a in _annotations(field.annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return []
        cls = inner[0]
    return list(cls.model_fields)


def _annotations(annotation: Any) -> list[Any]:
    args = getattr(annotation, "__args__", ())
    return [annotation] if not args else [leaf for arg in args for leaf in _annotations(arg)]
