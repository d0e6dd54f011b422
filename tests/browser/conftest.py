"""A headless Chromium for pages: screenshots and the document as it is after its scripts ran.

`browser` is skipped where no Chromium is installed; continuous integration installs it (see .ci/run).
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


@dataclass(frozen=True)
class Image:
    """rows of (r, g, b) triples, flat: pixel (x, y) is at `pixels[3 * (y * width + x)]`."""

    width: int
    height: int
    pixels: bytes

    def at(self, x: int, y: int) -> tuple[int, int, int]:
        start = 3 * (y * self.width + x)
        return tuple(self.pixels[start : start + 3])  # type: ignore[return-value]

    def colors(self) -> Counter[tuple[int, int, int]]:
        return Counter(zip(self.pixels[0::3], self.pixels[1::3], self.pixels[2::3], strict=True))


@dataclass(frozen=True)
class Browser:
    """Each call is a process and a profile of its own, so that nothing is left behind."""

    program: str
    folder: Path
    timeout_s: float = 50.0

    def dump(self, url: str, *, width: int = 1100, height: int = 900, wait_ms: int = 500) -> str:
        """The document's HTML `wait_ms` of virtual time after it was loaded. Not for pages whose streams never end."""
        return self._run(url, "--dump-dom", f"--virtual-time-budget={wait_ms}", width=width, height=height)

    def screenshot(
        self, url: str, name: str, *, width: int = 1100, height: int = 900, dark: bool = False, wait_ms: int = 500
    ) -> Image:
        """The page as an image, also kept as `name`.png in the test's folder."""
        path = self.folder / f"{name}.png"
        scheme = ("--blink-settings=preferredColorScheme=0", "--force-dark-mode") if dark else ()
        budget = f"--virtual-time-budget={wait_ms}"
        self._run(url, f"--screenshot={path}", budget, *scheme, width=width, height=height)
        return read_png(path.read_bytes())

    def _run(self, url: str, *flags: str, width: int, height: int) -> str:
        profile = self.folder / f"profile-{len(list(self.folder.glob('profile-*')))}"
        command = [
            self.program,
            *CHROMIUM_FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            *flags,
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout_s)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = find_chromium()
    if program is None:
        if os.environ.get("TOKENMILL_NO_SKIP") == "1":
            pytest.fail("no Chromium, and here nothing may be skipped: apt-get install chromium")
        pytest.skip("no Chromium: apt-get install chromium")
    return Browser(program, tmp_path)


def read_png(data: bytes) -> Image:
    """8-bit RGB or RGBA without interlacing, which is what Chromium writes."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    position, packed, header = 8, b"", b""
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        kind, body = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        header, packed = (body, packed) if kind == b"IHDR" else (header, packed + body if kind == b"IDAT" else packed)
        position += 12 + length
    width, height, depth, color, _, _, interlace = struct.unpack(">IIBBBBB", header)
    assert depth == 8 and color in (2, 6) and not interlace, f"{depth=} {color=} {interlace=}"
    return Image(width, height, _unfilter(zlib.decompress(packed), width, height, 3 if color == 2 else 4))


def _unfilter(raw: bytes, width: int, height: int, num_channels: int) -> bytes:
    """PNG filters 0 to 4, as RGB."""
    import numpy as np

    stride = width * num_channels
    rows = np.frombuffer(raw, np.uint8).reshape(height, stride + 1)
    out = np.zeros((height, stride), np.uint8)
    for y in range(height):
        above = out[y - 1] if y else np.zeros(stride, np.uint8)
        out[y] = _row(rows[y, 0], rows[y, 1:].copy(), above, num_channels)
    return out.reshape(height, width, num_channels)[:, :, :3].tobytes()


def _row(kind, line, above, step):
    import numpy as np

    if kind == 0:
        return line
    if kind == 2:
        return line + above
    if kind == 1:
        columns = line.reshape(-1, step)
        return np.cumsum(columns, axis=0, dtype=np.uint8).reshape(-1)
    done = bytearray(len(line))
    data, up = bytes(line), bytes(above)
    for i in range(len(data)):
        a = done[i - step] if i >= step else 0
        c = up[i - step] if i >= step else 0
        done[i] = (data[i] + ((a + up[i]) // 2 if kind == 3 else _paeth(a, up[i], c))) & 255
    return np.frombuffer(bytes(done), np.uint8)


def _paeth(a: int, b: int, c: int) -> int:
    p = a + b - c
    distances = (abs(p - a), abs(p - b), abs(p - c))
    return (a, b, c)[distances.index(min(distances))]
