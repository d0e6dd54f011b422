"""The xgrammar backend with the real package: conformance, schemas drawn at random, answers of a tiny model.

    python tests/peers/xgrammar/run.py [--cache DIR]

xgrammar asks for triton on Linux, which it needs for GPUs alone: pinned, it is put into a folder outside the repository
without what it depends on, and the checks run beside the torch and transformers of this environment. See README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PINS = ("xgrammar==0.2.9", "apache-tvm-ffi==0.1.15.post2")


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tokenmill-peers" / "xgrammar"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=cache, help="where the package is kept")
    folder = _installed(parser.parse_args().cache)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    checks = Path(__file__).with_name("checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", str(checks)]
    return subprocess.run(command, cwd=ROOT, env=env, timeout=900).returncode


def _installed(cache: Path) -> Path:
    """Other pins, other folder."""
    key = json.dumps([PINS, sys.version_info[:2]])
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:12]
    if not (folder / ".ok").exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PINS]
        subprocess.run(command, check=True, timeout=900)
        (folder / ".ok").touch()
    return folder


if __name__ == "__main__":
    sys.exit(main())
