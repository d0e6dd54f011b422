"""Models that can be priced without their weights: by name, or by a config.json. Torch-free.

Not responsible for: loading (registry.py), seconds or dollars (cost/).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.core.work_description import WorkDescription
from tokenmill.models import work as llama_work
from tokenmill.models.deepseek_v3 import work as deepseek_v3
from tokenmill.models.deepseek_v4 import presets
from tokenmill.models.deepseek_v4 import work as deepseek_v4
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.gpt_oss import work as gpt_oss
from tokenmill.models.llama_config import read_llama_config
from tokenmill.models.llama_presets import PRESETS

#: name -> (precision meant when none is given, description at a precision)
_DESCRIBE: dict[str, tuple[str, Callable[[str], WorkDescription]]] = {
    "deepseek-v4-flash": ("fp4", lambda p: deepseek_v4.describe(presets.flash(), p, name="deepseek-v4-flash")),
    "deepseek-v4-pro": ("fp4", lambda p: deepseek_v4.describe(presets.pro(), p, name="deepseek-v4-pro")),
    "deepseek-v3.2": ("fp8", lambda p: deepseek_v3.describe(p, name="deepseek-v3.2")),
    "deepseek-v3": ("fp8", lambda p: deepseek_v3.describe(p, name="deepseek-v3")),
    "deepseek-r1": ("fp8", lambda p: deepseek_v3.describe(p, name="deepseek-r1")),
    "gpt-oss-120b": ("fp4", lambda p: gpt_oss.describe(p)),
}
PRICED = (*_DESCRIBE, *PRESETS)


def describe_model(model: str, precision: str | None = None) -> WorkDescription:
    """`model`: one of PRICED (case does not matter), or a folder or config.json of a family known here.

    precision  None: what the model is released in
    """
    name = model.strip().lower().replace("_", "-")
    if name in _DESCRIBE:
        default, describe = _DESCRIBE[name]
        return describe(precision or default)
    if name in PRESETS:
        return llama_work.describe(read_llama_config(PRESETS[name], name), precision or "bf16", name=name)
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.name.endswith(".json") and path.is_file():
        return describe_config(_read(path), precision, name=path.parent.name)
    near = difflib.get_close_matches(name, PRICED, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"model {model!r} has no price model: {hint}possible: {', '.join(PRICED)}; or a config.json")


def describe_config(data: dict[str, Any], precision: str | None = None, *, name: str) -> WorkDescription:
    """A parsed config.json of a served family."""
    if data.get("model_type") == "deepseek_v4":
        config = DeepseekV4Config.from_dict(data)
        return deepseek_v4.describe(config, precision or ("fp4" if config.block_quantised else "bf16"), name=name)
    return llama_work.describe(read_llama_config(data, name), precision or "bf16", name=name)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return data
