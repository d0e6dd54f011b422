"""Paths into a nested configuration: set `a.b.c` to a value written as text, read by the type of its field.

Not responsible for: validation (pydantic does that) or where the text comes from (load.py).
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from pydantic import BaseModel

from tokenmill.core.errors import ConfigError
from tokenmill.core.units import parse_bytes, parse_seconds
from tokenmill.recipes.config import DeploymentConfig

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_COUNT = re.compile(r"([0-9]+)(\.[0-9]+)?([kmgKMG])$")


def set_path(data: dict[str, Any], path: str, value: Any, *, whole: str) -> None:
    """Set `path` (dotted; `models.*` or `engine.…` mean every model) in a nested dict of settings.

    whole  the text the user wrote, for messages
    """
    parts = path.split(".")
    if parts[0] == "engine":
        parts = ["models", "*", *parts]
    for target in _targets(data, parts[:-1], whole):
        target[parts[-1]] = value


def _targets(node: Any, parts: list[str], whole: str) -> list[dict[str, Any]]:
    """The dicts that `parts` leads to; missing ones are made."""
    if not parts:
        if not isinstance(node, dict):
            raise ConfigError(f"{whole!r} leads to {node!r}, which has no settings inside")
        return [node]
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        return [target for item in _items(node, head, whole) for target in _targets(item, rest, whole)]
    if not isinstance(node, dict):
        raise ConfigError(f"{whole!r} leads to {node!r}, which has no settings inside")
    return _targets(node.setdefault(head, {}), rest, whole)


def _items(models: list[Any], index: str, whole: str) -> list[Any]:
    if index == "*":
        return models
    if index.isdigit() and int(index) < len(models):
        return [models[int(index)]]
    raise ConfigError(f"{whole!r}: models.{index} does not exist: give 0 to {len(models) - 1}, or * for all")


def parse_text(path: str, text: str) -> Any:
    """The value that `text` means for the field at `path`: 8k for a count, 30s for a `_s`, 2GiB for a `_bytes`."""
    kind = _field_types(path)
    name = path.rpartition(".")[2]
    has_parts = any(issubclass(one, BaseModel) for one in kind)
    if type(None) in kind and text.lower() in (("none", "null") if has_parts else ("none", "null", "auto")):
        return None
    if kind & {int, float} and name.endswith("_s"):
        return parse_seconds(text)
    if int in kind and name.endswith("_bytes"):
        return parse_bytes(text)
    if int in kind:
        return parse_count(text, name)
    if str in kind or not kind:
        return text
    return yaml.safe_load(text)


def parse_count(text: str, name: str = "value") -> Any:
    """'8k' -> 8000, '8K' -> 8192, '1.5m' -> 1500000; other text is returned for pydantic to judge."""
    match = _COUNT.match(text.strip())
    if not match:
        return text
    whole, fraction, suffix = match.groups()
    if fraction and suffix.isupper():
        raise ConfigError(f"{name}={text!r}: a binary suffix takes whole numbers: write {whole}{suffix}")
    return round(float(whole + (fraction or "")) * _SUFFIXES[suffix])


def _field_types(path: str) -> set[type]:
    """Leaf types of the field's annotation; empty when there is no such field (validation will say so)."""
    parts = path.split(".")
    if parts[0] == "engine":
        parts = ["models", "*", *parts]
    model: type[BaseModel] | None = DeploymentConfig
    for part in parts[:-1]:
        if part == "*" or part.isdigit():
            continue
        model = _inner_model(model, part)
    if model is None or parts[-1] not in model.model_fields:
        return set()
    return set(_leaves(model.model_fields[parts[-1]].annotation))


def _inner_model(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    if model is None or name not in model.model_fields:
        return None
    leaves = _leaves(model.model_fields[name].annotation)
    return next((leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, BaseModel)), None)


def _leaves(annotation: Any) -> list[Any]:
    args = [arg for arg in getattr(annotation, "__args__", ()) if arg is not Ellipsis]
    if not args:
        return [annotation]
    if getattr(annotation, "__origin__", None) in (dict,):
        return [dict]
    if all(isinstance(arg, str) for arg in args):  # Literal["a", "b"]
        return [str]
    return [leaf for arg in args for leaf in _leaves(arg)]
