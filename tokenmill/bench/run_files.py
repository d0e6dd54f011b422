"""Files of one run, written while it happens: a line per request, and the trace that replays it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import msgspec

from tokenmill.core.errors import ConfigError
from tokenmill.core.paths import cache_folder
from tokenmill.workloads.conductor import Due
from tokenmill.workloads.request_record import RequestRecord
from tokenmill.workloads.trace import TraceWriter

REQUESTS, TRACE = "requests.jsonl", "trace.jsonl"


def default_folder() -> Path:
    return cache_folder("runs") / uuid.uuid4().hex[:12]


class RunFiles:
    """A killed run keeps the requests that had ended."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._requests = (folder / REQUESTS).open("wb", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"results cannot be written to {str(folder)!r} ({error.strerror}): use --output"
            ) from None
        self._folder = folder
        self._encode = msgspec.json.Encoder().encode

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.close()

    def request(self, record: RequestRecord) -> None:
        self._requests.write(self._encode(record.to_dict()) + b"\n")

    def trace(self, sent: Iterable[tuple[Due, float]]) -> None:
        writer = TraceWriter()
        lines = (writer.line(due.session, due.turn_index, at_s) for due, at_s in sent)
        (self._folder / TRACE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
