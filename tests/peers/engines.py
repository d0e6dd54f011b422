"""Puts another engine into an environment of its own, pinned, outside the repository; a second call installs nothing.

Not responsible for: what is measured (`tokenmill bench peers`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenmill.bench.peers.places import Peer, default_peers_dir, find_peer


def install(name: str, fill: Callable[[Path], None], description: str) -> tuple[Peer, argparse.Namespace]:
    """Make the environment of peer `name` unless it is there; `fill` gets its Python and installs into it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers-dir", type=Path, default=default_peers_dir(), help="where environments are kept")
    parser.add_argument("--only-install", action="store_true", help="do not try it")
    args = parser.parse_args()
    peer = find_peer(name)
    assert peer.folder is not None
    folder = args.peers_dir / peer.folder
    if not peer.is_installed(args.peers_dir):
        print(f"{name}: installing into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        fill(peer.python(args.peers_dir))
        (folder / ".ok").touch()
    return peer, args


def pip_install(python: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **(env or {})})


def requirements_of(python: Path, package: str, *, without: Sequence[str]) -> list[str]:
    """What an installed package asks for here, less its extras and some names."""
    code = f"import importlib.metadata as m; print('\\n'.join(m.requires({package!r}) or []))"
    told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    lines = [line for line in told.splitlines() if "extra ==" not in line]
    return [line for line in lines if re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] not in without]


def try_peer(peer: Peer, args: argparse.Namespace) -> int:
    """One short run beside tokenmill; the last line is JSON."""
    if args.only_install:
        return 0
    command = [sys.executable, "-m", "tokenmill.cli.main", "bench", "peers", "--peers", peer.name, "--quick"]
    return subprocess.run([*command, "--peers-dir", str(args.peers_dir)]).returncode
