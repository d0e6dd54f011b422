"""What a model may be called, and how a name that means nothing is answered."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.core.errors import CheckpointError
from tokenmill.models import store
from tokenmill.models.aliases import ALIASES, WheelSource
from tokenmill.models.store import default_name, find_local, list_models, pull, resolve_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


def _folder(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).write_text("{}")
    return path


def test_local_folder_and_file(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", "config.json")
    assert resolve_model(str(folder)) == folder
    file = _folder(tmp_path / "gguf", "weights.gguf") / "weights.gguf"
    assert resolve_model(str(file)) == file
    assert resolve_model(str(file.parent)) == file


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "neither config.json nor a .gguf file"),
        (("a.gguf", "b.gguf"), "2 .gguf files: name one of them"),
    ],
)
def test_folder_that_is_no_model(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve_model(str(_folder(tmp_path / "model", *files)))


def test_a_path_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"^the model 'm{300}' cannot be opened \(File name too long\)"):
        resolve_model("m" * 300)
    folder = _folder(tmp_path / "model", "config.json")
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.name == "config.json":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be opened \(Permission denied\): let this user read it"):
        resolve_model(str(folder))


def test_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"is a file but no .gguf: possible: an alias"):
        resolve_model(str(path))


@pytest.mark.parametrize(
    ("spec", "hint"),
    [("smolm2", "did you mean 'smollm2'"), ("org/name", "did you mean 'hf:org/name'"), ("./absent", "possible: an al")],
)
def test_unknown_name_lists_what_is_possible(spec: str, hint: str) -> None:
    with pytest.raises(CheckpointError, match=hint) as error:
        resolve_model(spec)
    assert "smollm2" in error.value.message and "\n" not in error.value.message


def test_only_aliases_and_hub_names_can_be_pulled(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be pulled"):
        pull(str(tmp_path))


def test_alias_goes_through_the_cache_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(store, "fetch_wheel", lambda source, dest, progress: calls.append(dest))
    path = resolve_model("smollm2")
    assert path == cache / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert calls == [path]
    assert find_local("smollm2") is None
    assert find_local("hf:org/name") is None


def test_list_shows_what_a_pull_will_take() -> None:
    model = next(model for model in list_models() if model.spec == "smollm2")
    assert (model.spec, model.is_local, model.path) == ("smollm2", False, None)
    source = ALIASES["smollm2"].source
    assert isinstance(source, WheelSource) and model.num_bytes == source.wheel_bytes
    assert "Apache-2.0" in (model.licence or "")


def test_the_packaged_model_is_always_here(cache: Path) -> None:
    path = resolve_model("v4-nano")
    assert path == find_local("v4-nano") == pull("v4-nano") and (path / "config.json").is_file()
    model = next(model for model in list_models() if model.spec == "v4-nano")
    assert model.is_local and model.path == path and 2**20 < model.num_bytes < 20 * 10**6
    assert not cache.exists()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("smollm2", "smollm2"),
        ("hf:org/name@main", "org/name"),
        ("/models/tiny.Q4_1.gguf", "tiny.Q4_1"),
        ("/models/llama/", "llama"),
        ("models/Llama-3.2", "Llama-3.2"),
    ],
)
def test_default_name(spec: str, name: str) -> None:
    assert default_name(spec) == name


def test_store_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import tokenmill.models.store, tokenmill.models.fetch_hub\n"
        "import json; print(json.dumps([m.spec for m in tokenmill.models.store.list_models()]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert json.loads(result.stdout) == ["smollm2", "v4-nano"]
