"""The output folder of a conversion: what is finished, the files beside the weights, config.json last of all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenmill
from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.models.quantization.configs import compressed_tensors_config, modelopt_config, modelopt_section
from tokenmill.models.safetensors_write import PART_SUFFIX
from tokenmill.models.weights import Checkpoint, read_json

if TYPE_CHECKING:
    from tokenmill.models.quantization.convert import Settings

_STATE = ".quantize.json"
REPORT = "quantize_report.json"
_BESIDE = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*")
_NOT_COPIED = ("config.json", "hf_quant_config.json", "model.safetensors.index.json", REPORT, _STATE)


class OutputFolder:
    """`wish`: what is converted and how; a folder begun with another wish is refused."""

    def __init__(self, path: Path, wish: Mapping[str, Any]) -> None:
        self._path = path
        wish = json.loads(json.dumps(wish))
        if (path / "config.json").exists():
            raise ConfigError(f"{path} holds a model already: give a folder that does not exist yet")
        if path.exists() and any(path.iterdir()):
            begun = read_json(path / _STATE) if (path / _STATE).is_file() else None
            if begun != wish:
                what = "another conversion that was not finished" if begun else "something else"
                raise ConfigError(f"{path} holds {what}: remove it, or give another folder")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"{path} cannot be made ({error.strerror}): give another folder") from None
        for left in path.glob(f"*{PART_SUFFIX}"):
            left.unlink()
        self._write(_STATE, wish)

    def shard(self, index: int) -> Path:
        return self._path / f"part-{index + 1:05d}.safetensors"

    def finished(self, index: int) -> list[dict[str, Any]] | None:
        """Report lines of a whole shard; None if it must be written."""
        lines = self._path / f".part-{index + 1:05d}.json"
        if not self.shard(index).is_file() or not lines.is_file():
            return None
        found: list[dict[str, Any]] = read_json(lines)["tensors"]
        return found

    def finish_shard(self, index: int, lines: Sequence[Mapping[str, Any]]) -> None:
        self._write(f".part-{index + 1:05d}.json", {"tensors": list(lines)})

    def complete(
        self,
        source: Checkpoint,
        settings: Settings,
        names: Sequence[Sequence[str]],
        total_bytes: int,
        ignored: Sequence[str],
        report: Mapping[str, Any],
    ) -> None:
        """names: stored tensors by shard. Everything else first, config.json last."""
        files = [self.shard(i).name for i in range(len(names))]
        index = {name: file for file, stored in zip(files, names, strict=True) for name in stored}
        self._write("model.safetensors.index.json", {"metadata": {"total_size": total_bytes}, "weight_map": index})
        self._write(REPORT, report)
        if source.path.is_dir():
            self._copy_beside(source.path)
        config = dict(source.config)
        if settings.layout == "modelopt":
            made_by = {"name": "tokenmill", "version": tokenmill.__version__}
            quantization = modelopt_config(ignored, made_by)
            self._write("hf_quant_config.json", quantization)
            config["quantization_config"] = modelopt_section(quantization)
        else:
            config["quantization_config"] = compressed_tensors_config(settings.scheme, ignored)
        self._write("config.json", config)
        for left in (self._path / _STATE, *self._path.glob(".part-*.json")):
            left.unlink()

    def _copy_beside(self, source: Path) -> None:
        for pattern in _BESIDE:
            for file in source.glob(pattern):
                if file.name not in _NOT_COPIED and file.is_file():
                    shutil.copyfile(file, self._path / file.name)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        part = self._path / f"{name}{PART_SUFFIX}"
        try:
            with part.open("w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ResourceError(
                f"{part} cannot be written ({error.strerror}): make room, then run the same command again"
            ) from None
