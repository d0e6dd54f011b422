"""Compiles the C kernels at first use into the user's cache; nothing binary is shipped.

The cache key holds the sources, the compiler and the instruction set, so that a changed kernel, a new compiler or
another machine on the same home folder each get their own build. Not responsible for: calling it (library.py).
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.paths import cache_folder

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ("-O3", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
#: TOKENMILL_CPU_ISA -> compiler flags; "native" is whatever this CPU has.
_TARGETS = {"native": ("-march=native",), "avx2": ("-march=x86-64-v3",), "generic": ()}
_TIMEOUT_S = 120


class NativeUnavailableError(Exception):
    """The kernels cannot be built here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Build:
    """`isa` is the target asked for, `seconds` what compiling took (0 when it was in the cache)."""

    path: Path
    isa: str
    compiler: str
    seconds: float


def build() -> Build:
    """The shared library for this machine, compiled if it is not in the cache."""
    isa = os.environ.get("TOKENMILL_CPU_ISA", "native")
    if isa not in _TARGETS:
        raise NativeUnavailableError(f"TOKENMILL_CPU_ISA={isa!r} is not possible: choose {', '.join(_TARGETS)}")
    compiler = next((found for name in ("gcc", "clang", "cc") if (found := shutil.which(name))), None)
    if compiler is None:
        raise NativeUnavailableError("no C compiler found (gcc, clang or cc): install one for the fast CPU kernels")
    target = cache_folder("kernels") / f"tokenmill-{_key(compiler, isa)}.so"
    if target.exists():
        return Build(target, isa, compiler, 0.0)
    start = time.monotonic()
    # As a warning: shown by commands that set up no log, whose user would wonder what takes seconds.
    log.warning("compiling CPU kernels with %s (%s); once, a few seconds", compiler, isa)
    _compile(compiler, isa, target)
    return Build(target, isa, compiler, time.monotonic() - start)


def _key(compiler: str, isa: str) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_TIMEOUT_S).stdout
    cpu = _cpu_identity() if isa == "native" else platform.machine()
    digest.update(repr((version, _FLAGS, _TARGETS[isa], cpu)).encode())
    return digest.hexdigest()[:20]


def _cpu_identity() -> str:
    """Instruction sets of the first core: two machines that share a home folder may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _compile(compiler: str, isa: str, target: Path) -> None:
    """Into a temporary file first: several workers may compile at once, and each rename is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / target.name
        command = [compiler, *_FLAGS, *_TARGETS[isa], "-o", str(output), str(SOURCES / "all.c"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode != 0:
            first = next(iter(done.stderr.strip().splitlines()), "no message")
            raise NativeUnavailableError(f"{compiler} could not compile the CPU kernels: {first}")
        output.replace(target)
