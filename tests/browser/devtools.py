"""A page in a headless Chromium that a test drives over its DevTools socket: for pages whose streams never end."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Self

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.browser.conftest import CHROMIUM_FLAGS, Image, read_png


class Tab:
    """`with Tab(program, folder) as tab: tab.open(url); tab.wait("document.title == 'x'")`."""

    def __init__(self, program: str, folder: Path, timeout_s: float = 20.0) -> None:
        self._profile = folder / "profile"
        self._timeout_s = timeout_s
        self._ids = count(1)
        command = [program, *CHROMIUM_FLAGS, f"--user-data-dir={self._profile}", "--remote-debugging-port=0"]
        self._stack = ExitStack()
        self._process = subprocess.Popen(
            [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Self:
        try:
            pages = httpx.get(f"http://127.0.0.1:{self._port()}/json", timeout=self._timeout_s).json()
            address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            self._socket: ClientConnection = self._stack.enter_context(connect(address, max_size=None))
        except BaseException:
            self._end()
            raise
        self.call("Page.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._stack.close()
        self._process.terminate()
        self._process.wait(self._timeout_s)

    def _port(self) -> int:
        """Chromium writes the port it took into its profile."""
        path, until = self._profile / "DevToolsActivePort", time.monotonic() + self._timeout_s
        while not (path.is_file() and path.read_text().count("\n")):
            assert self._process.poll() is None and time.monotonic() < until, "Chromium did not start"
            time.sleep(0.02)
        return int(path.read_text().splitlines()[0])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(self._timeout_s))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until the page says so; asked again and again, as there is no event for what a script will have done."""
        until = time.monotonic() + self._timeout_s
        while not self.value(expression):
            assert time.monotonic() < until, f"never true: {expression}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> Image:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return read_png(data)
