"""Fetches a model folder from a Hugging Face hub through huggingface_hub, into that library's own cache.

Only what a model needs is taken: configuration, tokenizer, safetensors. Not responsible for: reading the folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tokenmill.core.errors import CheckpointError, DownloadError
from tokenmill.models.fetch_wheel import Progress, check_space

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]


def fetch_hub(repo_id: str, revision: str | None, progress: Progress) -> Path:
    """Folder of the snapshot of `repo_id` (at `revision`, else its main branch), downloaded where it is missing.

    HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_CACHE mean what they mean to huggingface_hub.
    """
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils import HFValidationError

    cache = hub_cache_dir()
    request: dict[str, Any] = {"repo_id": repo_id, "revision": revision, "allow_patterns": WANTED}
    request |= {"cache_dir": cache, "endpoint": os.environ.get("HF_ENDPOINT")}
    try:
        plan = snapshot_download(**request, dry_run=True, tqdm_class=_silent())
    except (errors.DryRunError, errors.OfflineModeIsEnabled) as error:
        return _cached_or_raise(request, error)
    except (errors.HfHubHTTPError, errors.HFValidationError, HFValidationError, OSError) as error:
        raise _explain(repo_id, revision, error) from error
    _check_files(repo_id, [entry.filename for entry in plan])
    missing = [entry for entry in plan if entry.will_download]
    total = sum(entry.file_size or 0 for entry in missing)
    if missing:
        cache.mkdir(parents=True, exist_ok=True)
        check_space(cache, total, f"hf:{repo_id}")
    try:
        folder = Path(snapshot_download(**request, tqdm_class=_forwarding(progress, total)))
    except (errors.HfHubHTTPError, OSError) as error:
        raise _explain(repo_id, revision, error) from error
    if missing:
        progress("downloading", total, total)
    return folder


def hub_cache_dir() -> Path:
    """Where huggingface_hub keeps its files, read from the environment now rather than at its import."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(home).expanduser() / "hub"


def _cached_or_raise(request: dict[str, Any], error: Exception) -> Path:
    """Without a connection a snapshot that is complete on disk still serves."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(**request, local_files_only=True))
    except (errors.LocalEntryNotFoundError, OSError) as missing:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise _explain(request["repo_id"], request["revision"], cause) from missing


def _check_files(repo_id: str, names: list[str]) -> None:
    if not any(name.endswith(".safetensors") for name in names):
        raise CheckpointError(
            f"hf:{repo_id} holds no .safetensors file: pick a repository that has weights in this format, or download "
            "a .gguf file from it and give that file's path"
        )
    if "config.json" not in names:
        raise CheckpointError(f"hf:{repo_id} holds no config.json: pick a repository with a transformers-style folder")


def _explain(repo_id: str, revision: str | None, error: Exception) -> Exception:
    from huggingface_hub import errors

    name = f"hf:{repo_id}" + (f"@{revision}" if revision else "")
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(f"{name} is gated: accept its licence on the hub and set HF_TOKEN to a token of yours")
    if isinstance(error, errors.RevisionNotFoundError):
        return DownloadError(f"{name}: the repository has no such revision; leave @revision away for its main branch")
    if isinstance(error, errors.RepositoryNotFoundError):
        return DownloadError(f"{name} is not on the hub: check the name; for a private repository set HF_TOKEN")
    if isinstance(error, errors.HFValidationError):
        return DownloadError(f"{name} is not a repository name: write hf:organisation/name or hf:…/name@revision")
    return DownloadError(
        f"{name} cannot be fetched ({type(error).__name__}: {_first_line(error)}) and is not complete in "
        f"{hub_cache_dir()}: check the connection, HF_ENDPOINT and HF_HUB_OFFLINE, or give the path of a model folder"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _silent() -> type:
    from tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent


def _forwarding(progress: Progress, total_bytes: int) -> type:
    """A tqdm class that draws nothing and reports the bytes of all files together to `progress`.

    The library may count the same bytes on several bars (received, written): the fullest bar is the truth.
    """
    silent = _silent()
    most = 0

    class Forwarding(silent):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._done_bytes = 0 if kwargs.get("unit") == "B" else None
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            if self._done_bytes is not None:
                self._done_bytes += int(n or 0)
                most = min(total_bytes, max(most, self._done_bytes))
                progress("downloading", most, total_bytes)

    return Forwarding
