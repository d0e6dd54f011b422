"""What a checkpoint says of itself, read without torch: enough to resolve `auto` settings before a worker starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import CheckpointError
from tokenmill.models.gguf_file import GGUFFile

#: Source tokens per logical block by model_type; V4's heavily compressed groups keep one row per 128 tokens.
_BLOCK_SIZES = {"deepseek_v4": 128}
_DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """
    architecture   the config's model_type, e.g. "llama"
    max_model_len  context limit in tokens; None: the checkpoint does not say
    block_size     source tokens per logical block that its builder prefers
    """

    architecture: str
    max_model_len: int | None
    block_size: int


def read_model_facts(path: Path) -> ModelFacts:
    """Facts of a model folder or .gguf file; CheckpointError when it cannot be read."""
    architecture, max_model_len = _from_gguf(path) if path.suffix == ".gguf" else _from_folder(path)
    return ModelFacts(architecture, max_model_len, _BLOCK_SIZES.get(architecture, _DEFAULT_BLOCK_SIZE))


def _from_gguf(path: Path) -> tuple[str, int | None]:
    metadata = GGUFFile(path).metadata
    architecture = str(metadata.get("general.architecture", "unknown"))
    return architecture, metadata.get(f"{architecture}.context_length")


def _from_folder(path: Path) -> tuple[str, int | None]:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return str(config["model_type"]), config.get("max_position_embeddings")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path / 'config.json'} cannot be read ({type(error).__name__}: {error}): fetch the model again"
        ) from None
