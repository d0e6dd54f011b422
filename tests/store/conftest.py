"""A hub on loopback, and a small wheel that stands for a published model."""

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tokenmill.models.aliases import WheelSource

CONTENT = bytes(range(256)) * 4096  # 1 MiB that does not compress into nothing


@pytest.fixture(scope="session")
def content() -> bytes:
    return CONTENT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="session")
def source(wheel: Path) -> WheelSource:
    return WheelSource(
        package="tiny-model",
        version="1.0",
        member="tiny_model/tiny.gguf",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file_bytes=len(CONTENT),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@dataclass
class FakeHub:
    """Repositories by name: file name -> bytes. `requests` are the paths asked for; `gated` repositories say 403."""

    endpoint: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # sizes announced instead of the true ones

    @staticmethod
    def commit(files: dict[str, bytes]) -> str:
        return hashlib.sha1(json.dumps(sorted(files)).encode()).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    fake.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", fake.endpoint)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            if path.startswith("/api/models/"):
                self._api(path.removeprefix("/api/models/"))
            else:
                self._resolve(path.lstrip("/"))

        do_HEAD = do_GET

        def _api(self, path: str) -> None:
            repo_id, _, rest = path.partition("/revision/") if "/revision/" in path else path.partition("/tree/")
            if repo_id in hub.gated:
                return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
            files = hub.repos.get(repo_id)
            if files is None:
                return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if "/tree/" in path:
                return self._json([_entry(name, data, hub.sizes) for name, data in files.items()])
            if rest not in ("main", hub.commit(files)):
                return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            self._json({"id": repo_id, "modelId": repo_id, "sha": hub.commit(files), "siblings": [], "tags": []})

        def _resolve(self, path: str) -> None:
            repo_id, _, rest = path.partition("/resolve/")
            commit, _, name = rest.partition("/")
            data = hub.repos.get(repo_id, {}).get(name)
            if data is None:
                return self._answer(404, b"", {})
            headers = {"ETag": f'"{_blob_id(data)}"', "X-Repo-Commit": commit}
            self._answer(200, data, headers | {"Content-Length": str(hub.sizes.get(name, len(data)))})

        def _json(self, value: object) -> None:
            self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    return Handler


def _entry(name: str, data: bytes, sizes: dict[str, int]) -> dict[str, object]:
    return {"type": "file", "path": name, "size": sizes.get(name, len(data)), "oid": _blob_id(data)}


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
