"""Where tokenmill keeps files between runs, and finds those it ships; what is in them is their owner's business."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Folder `name` under $TOKENMILL_CACHE (default ~/.cache/tokenmill); not created here."""
    root = os.environ.get("TOKENMILL_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "tokenmill") / name


def asset_path(name: str) -> Path:
    """A file that pages need (scripts, styles), shipped with the package under `tokenmill/assets`."""
    return Path(__file__).resolve().parent.parent / "assets" / name


def read_asset(name: str) -> str:
    return asset_path(name).read_text(encoding="utf-8")
