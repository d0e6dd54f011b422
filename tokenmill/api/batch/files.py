"""The files of a batch run: the output goes on where an earlier run stopped. Not responsible for: answering."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tokenmill.api.batch.lines import answered
from tokenmill.core.errors import BadRequestError


def open_input(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadRequestError(f"--input-file {path} cannot be read: {error.strerror}") from None


class BatchOutput:
    """Appends answers. On opening, lines that answer nothing for good are taken out of an earlier run's output.

    `finished`: custom_ids that need no answer any more.
    """

    def __init__(self, path: Path, input_path: Path) -> None:
        self.finished: set[str] = set()
        try:
            if path.exists() and path.samefile(input_path):
                raise BadRequestError("--output-file is the input file: choose another")
            if path.exists():
                self._keep_answers(path)
            self._file = path.open("ab")
        except OSError as error:
            raise BadRequestError(f"--output-file {path} cannot be written: {error.strerror}") from None

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        self._file.flush()

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _keep_answers(self, path: Path) -> None:
        """Through a new file beside it, so that a crash here loses nothing."""
        kept = path.with_name(path.name + ".tmp")
        with path.open("rb") as old, kept.open("wb") as new:
            new.writelines(self._answers(old))
            new.flush()
            os.fsync(new.fileno())
        kept.replace(path)

    def _answers(self, lines: BinaryIO) -> Iterator[bytes]:
        for line in lines:
            custom_id = answered(line)
            if custom_id is not None and custom_id not in self.finished:
                self.finished.add(custom_id)
                yield line if line.endswith(b"\n") else line + b"\n"
