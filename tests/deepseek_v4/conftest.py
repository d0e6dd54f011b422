"""Golden checkpoints (or those of --goldens DIR), loaded once per process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.deepseek_v4.tiny import random_tensors, v4_json, write_checkpoint
from tokenmill.models.deepseek_v4.model import DeepseekV4
from tokenmill.models.deepseek_v4.native import NativeDeepseekV4
from tokenmill.models.registry import load_model

GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


@dataclass(frozen=True)
class Golden:
    """A checkpoint with reference outputs; see tests/data/goldens/README.md for the names in `reference`."""

    path: Path
    reference: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def lengths(self) -> list[int]:
        return sorted(int(name.split(".")[0][7:]) for name in self.reference if name.endswith(".input_ids"))

    def ids(self, length: int) -> list[int]:
        return self.reference[f"prompt_{length}.input_ids"].tolist()

    def model(self, path: str = "reference", **extra: str) -> Any:
        return load_golden_model(self.path, tuple(sorted(extra.items())), path)


#: The two implementations that compute in float32 and must both equal the golden vectors.
PATHS = ("reference", "native")


@cache
def load_golden_model(path: Path, extra: tuple[tuple[str, str], ...] = (), kernels: str = "reference") -> Any:
    is_reference = kernels == "reference"
    model = load_model(path, dtype="float32", deterministic=is_reference, extra={"mtp": "auto", **dict(extra)}).model
    assert isinstance(model, DeepseekV4 if is_reference else NativeDeepseekV4), type(model)
    return model


@cache
def load_golden(path: Path) -> Golden:
    meta = path / "meta.json"
    return Golden(
        path,
        load_file(path / "reference.safetensors"),
        json.loads(meta.read_text()) if meta.is_file() else {},
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden" not in metafunc.fixturenames:
        return
    folder = Path(metafunc.config.getoption("--goldens") or GOLDENS)
    paths = sorted(path.parent for path in folder.glob("*/reference.safetensors"))
    if not paths:
        raise pytest.UsageError(f"--goldens {folder}: no folder below it has a reference.safetensors")
    metafunc.parametrize("golden", paths, indirect=True, ids=[path.name for path in paths])


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden(request.param)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> DeepseekV4:
    """A model with a layer of every kind, MTP included, float32 reference kernels."""
    config = v4_json()
    folder = write_checkpoint(tmp_path_factory.mktemp("v4") / "tiny", config, random_tensors(config))
    return load_golden_model(folder)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
