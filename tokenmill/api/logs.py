"""The process's log on stderr: plain lines for people, or one JSON object per line. Standard output stays free."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

from tokenmill.api.config import ApiConfig
from tokenmill.api.errors import encode_json

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return encode_json(line).decode()


def set_up_logging(config: ApiConfig, stream: TextIO | None = None) -> None:
    """Replace the handlers of the root logger by one for `stream` (stderr)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error"):  # its start-up chatter repeats our ready line
        logging.getLogger(name).setLevel("WARNING")
