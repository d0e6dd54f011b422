"""Where weights come from: a Hugging Face folder (safetensors, single or sharded) or a .gguf file.

A Checkpoint gives the config, tensors by their Hugging Face names, and a digest. Not responsible for: which
tensors a model wants and in which dtype (models/loading.py), de-quantising GGUF (models/weights_gguf.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import xxhash
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.models.safetensors_file import SafetensorsFile

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_NIBBLE_ORDER = "even_low"  # of packed four-bit codes: the even input in the low nibble
_WHOLE_BYTES = 2**16  # tensors up to this size are digested whole
_SAMPLE_BYTES = 1024  # of larger ones: begin, middle, end


class Checkpoint(Protocol):
    """
    path             as given, for messages
    config           Hugging Face field names, also for a GGUF
    tokenizer_path   what text/ can load the tokenizer from; None: the model takes token ids only
    eos_token_ids    ids that end a text
    """

    path: Path
    config: dict[str, Any]
    tokenizer_path: Path | None
    eos_token_ids: tuple[int, ...]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors by name, without reading data."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor in its stored dtype; may be a view of the file, valid until `release(name)`."""
        ...

    def release(self, name: str) -> None:
        """The caller has copied what it needs of this tensor."""
        ...

    def digest(self) -> str:
        """Differs when the content differs; cheap: headers, sizes and samples of every tensor."""
        ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A folder with config.json and safetensors, or a .gguf file. CheckpointError says what is wrong."""
    path = Path(path)
    if path.is_dir():
        return FolderCheckpoint(path)
    if path.suffix == ".gguf" and path.is_file():
        from tokenmill.models.weights_gguf import GGUFCheckpoint  # the gguf package is optional

        return GGUFCheckpoint(path)
    what = "does not exist" if not path.exists() else "is neither a folder nor a .gguf file"
    raise CheckpointError(f"model {path} {what}: give a folder with config.json and *.safetensors, or a .gguf file")


class FolderCheckpoint:
    """A Hugging Face folder, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / "config.json")
        self.tokenizer_path = path if (path / "tokenizer.json").is_file() else None
        self.eos_token_ids = _eos_token_ids(path, self.config)
        self._files = self._open_files()
        self._file_of = self._map_names()

    def _open_files(self) -> dict[str, SafetensorsFile]:
        names = sorted(set(self._index().values())) if self._is_sharded() else [self._single_name()]
        absent = [name for name in names if "/" in name or not (self.path / name).is_file()]
        if absent:
            raise CheckpointError(f"{self.path / _INDEX} names files that are not there: {listed(absent)}")
        files = {name: SafetensorsFile(self.path / name) for name in names}
        for file in files.values():
            order = file.metadata.get("nibble_order", _NIBBLE_ORDER)
            if order != _NIBBLE_ORDER:
                raise CheckpointError(
                    f"{file.path}: nibble_order is {order!r}: possible: {_NIBBLE_ORDER}; convert it anew"
                )
        return files

    def _is_sharded(self) -> bool:
        return (self.path / _INDEX).is_file()

    def _single_name(self) -> str:
        found = sorted(file.name for file in self.path.glob("*.safetensors"))
        if _SINGLE in found or len(found) == 1:
            return _SINGLE if _SINGLE in found else found[0]
        raise CheckpointError(
            f"{self.path} has {len(found)} safetensors files and no {_INDEX}: give a folder with "
            f"{_SINGLE}, or shards with their index; other formats (.bin, .pt) must be converted first"
        )

    def _index(self) -> dict[str, str]:
        index = read_json(self.path / _INDEX)
        names = index.get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise CheckpointError(f"{self.path / _INDEX}: weight_map must map tensor names to file names")
        return names

    def _map_names(self) -> dict[str, SafetensorsFile]:
        found = {name: file for file in self._files.values() for name in file.tensors}
        if not self._is_sharded():
            return found
        index = self._index()
        lost = [name for name, file in index.items() if name not in self._files[file].tensors]
        if lost:
            raise CheckpointError(f"{self.path / _INDEX} promises tensors that its files lack: {listed(lost)}")
        return {name: self._files[file] for name, file in index.items()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: file.tensors[name].shape for name, file in self._file_of.items()}

    def read(self, name: str) -> Tensor:
        return self._file_of[name].read(name)

    def release(self, name: str) -> None:
        self._file_of[name].release(name)

    def digest(self) -> str:
        hasher = xxhash.xxh3_128(json.dumps(self.config, sort_keys=True).encode())
        for file in self._files.values():
            hasher.update(file.header)
            for name, info in file.tensors.items():
                for begin, end in sample_ranges(info.begin, info.end):
                    hasher.update(file.sample(begin, end))
                file.release(name)
        return hasher.hexdigest()


def sample_ranges(begin: int, end: int) -> list[tuple[int, int]]:
    """Byte ranges to digest of a tensor at begin .. end: all of a small one; begin, middle and end of a large one."""
    if end - begin <= _WHOLE_BYTES:
        return [(begin, end)]
    middle = (begin + end) // 2
    return [(begin, begin + _SAMPLE_BYTES), (middle, middle + _SAMPLE_BYTES), (end - _SAMPLE_BYTES, end)]


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: a model folder needs config.json and *.safetensors") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def listed(names: list[str], limit: int = 10) -> str:
    """The first ten names and how many there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _eos_token_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json knows best (Llama 3 lists three there), then config.json."""
    generation = path / "generation_config.json"
    ids = read_json(generation).get("eos_token_id") if generation.is_file() else None
    ids = config.get("eos_token_id") if ids is None else ids
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (int(ids),)
