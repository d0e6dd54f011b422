"""Where tokenmill keeps files of its own between runs; what is in each subfolder is its owner's business."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Folder `name` under $TOKENMILL_CACHE (default ~/.cache/tokenmill); not created here."""
    root = os.environ.get("TOKENMILL_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "tokenmill") / name
