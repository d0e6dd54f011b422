"""Builds one DeploymentConfig out of recipes, environment, flags and `--set`. Pure but for reading recipe files.

Order: --set > flag > environment > YAML > default. Not responsible for: turning `auto` into values (resolve.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from tokenmill.core.errors import ConfigError
from tokenmill.recipes.config import DeploymentConfig
from tokenmill.recipes.flags import BY_KEY, FLAGS, Flag
from tokenmill.recipes.settings import parse_text, set_path

_LAYERS = ("operations", "api", "cost")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def load_deployment(
    sources: Sequence[str],
    *,
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> DeploymentConfig:
    """
    sources  each a recipe file (.yaml), the name of a shipped recipe, or a model; several are served together
    flags    flag key (`max_model_len`) -> value as given (text, bool, or list of texts); None: not given
    sets     `path=value`
    environ  where TOKENMILL_<FLAG> is looked up
    """
    data = merge([read_source(source) for source in sources])
    values = _from_environment(environ or {}) | {k: v for k, v in (flags or {}).items() if v is not None}
    for key, value in values.items():
        _apply_flag(data, BY_KEY[key], value)
    for text in sets:
        _apply_set(data, text)
    return DeploymentConfig.parse(data)


def shipped_recipes() -> list[str]:
    files = resources.files("tokenmill.recipes").joinpath("data").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def read_source(source: str) -> dict[str, Any]:
    """The settings that one argument of `serve` stands for."""
    if source.endswith((".yaml", ".yml")):
        return _parse(_read_file(Path(source)), source)
    if source in shipped_recipes():
        shipped = resources.files("tokenmill.recipes").joinpath("data", f"{source}.yaml")
        return _parse(shipped.read_text(encoding="utf-8"), f"recipe {source}")
    return {"models": [{"model": source}]}


def merge(recipes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All models together; a layer's setting may be in several recipes only with one value."""
    merged: dict[str, Any] = {"models": []}
    for recipe in recipes:
        merged["models"] += recipe.get("models", [])
        for key, value in recipe.items():
            if key != "models":
                merged[key] = _join(merged.get(key), value, key)
    return merged


def _join(old: Any, new: Any, path: str) -> Any:
    if old is None or old == new:
        return new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _join(old.get(key), value, f"{path}.{key}") for key, value in new.items()}
    raise ConfigError(f"the recipes disagree on {path}: {old!r} and {new!r}: set it with --set {path}=…, or serve one")


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        shipped = ", ".join(shipped_recipes())
        raise ConfigError(f"recipe {str(path)!r} cannot be read ({error}): shipped recipes: {shipped}") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"recipe {name!r} is not YAML: {problem}") from None
    if not isinstance(data, dict) or not isinstance(data.get("models"), list):
        raise ConfigError(f"recipe {name!r} has no list `models`: write models: [{{model: smollm2}}]")
    return data


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {flag.key: _from_variable(flag, environ[flag.variable]) for flag in FLAGS if environ.get(flag.variable)}


def _from_variable(flag: Flag, text: str) -> Any:
    if not flag.is_bool:
        return text
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigError(f"{flag.variable}={text!r} is neither {', '.join(_TRUE)} nor {', '.join(_FALSE)}")
    return text.lower() in _TRUE


def _apply_flag(data: dict[str, Any], flag: Flag, value: Any) -> None:
    if flag.key == "served_model_name":
        _apply_names(data, [value] if isinstance(value, str) else list(value))
        return
    parsed = parse_text(flag.path, value) if isinstance(value, str) else value
    set_path(data, flag.path, parsed, whole=f"--{flag.name}")


def _apply_names(data: dict[str, Any], names: list[str]) -> None:
    """The first name is the model's, further ones are aliases; comma-separated in the environment."""
    names = [part for name in names for part in name.split(",") if part]
    if not names:
        return
    if len(data["models"]) != 1:
        raise ConfigError(
            f"--served-model-name with {len(data['models'])} models does not say whose: "
            "use --set models.0.served_model_name=…"
        )
    data["models"][0]["served_model_name"] = names[0]
    for alias in names[1:]:
        set_path(data, "api.model_aliases", {**_aliases(data), alias: names[0]}, whole="--served-model-name")


def _aliases(data: dict[str, Any]) -> dict[str, str]:
    return dict(data.get("api", {}).get("model_aliases", {}))


def _apply_set(data: dict[str, Any], text: str) -> None:
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise ConfigError(f"--set {text!r} is not path=value: write e.g. --set engine.max_num_seqs=8")
    set_path(data, path.strip(), parse_text(path.strip(), value.strip()), whole=f"--set {text}")
