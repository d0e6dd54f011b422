"""OpenVINO GenAI, which reads GGUF files directly.

python tests/peers/openvino/run.py [--peers-dir DIR] [--only-install]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import install, pip_install, try_peer

PIN = "openvino-genai==2026.4.1.0"


def fill(python: Path) -> None:
    pip_install(python, PIN, "numpy")


if __name__ == "__main__":
    sys.exit(try_peer(*install("openvino", fill, __doc__ or "")))
