"""Settings of the HTTP door: where it listens, what it admits, how it writes. Not responsible for: the fleet behind."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from tokenmill.core.config import FrozenConfig


class LimitsConfig(FrozenConfig):
    """
    max_body_bytes        larger bodies are refused with 413, whether announced or streamed
    max_header_bytes      request line and headers of one request
    header_timeout_s      from the first byte of a connection (or of its next request) to the end of the headers
    body_timeout_s        from the end of the headers to the end of the body
    request_timeout_s     from the end of the body to the end of the answer, a client that reads slowly included
                          (operations.request_timeout_s bounds the generation alone)
    max_choices           prompts x n of one request
    max_stop_strings      entries of `stop`
    max_tools             entries of `tools`
    """

    max_body_bytes: int = Field(default=32 * 2**20, ge=1)
    max_header_bytes: int = Field(default=64 * 2**10, ge=256)
    header_timeout_s: float = Field(default=10.0, gt=0)
    body_timeout_s: float = Field(default=60.0, gt=0)
    request_timeout_s: float = Field(default=1200.0, gt=0)
    max_choices: int = Field(default=512, ge=1)
    max_stop_strings: int = Field(default=16, ge=1)
    max_tools: int = Field(default=512, ge=1)


class ResponsesConfig(FrozenConfig):
    """
    max_bytes  JSON of all responses that are kept; the longest unused are forgotten first; 0: none is kept
    ttl_s      a response that was not used for so long is forgotten
    """

    max_bytes: int = Field(default=64 * 2**20, ge=0)
    ttl_s: float = Field(default=3600.0, gt=0)


class ApiConfig(FrozenConfig):
    """
    host, port            where to listen; port 0 takes a free one and the ready line tells which
    api_key               bearer key that every generating route asks for; None: open
    model_aliases         further names of a served model: alias -> name on its card
    chat_template         file with a Jinja template that replaces the one of every served tokenizer
    limits                see LimitsConfig
    responses             what /v1/responses keeps, see ResponsesConfig
    stream_interval       output tokens per streamed chunk; the first and the last are never delayed
    keep_alive_s          silence on a stream after which a comment line is sent
    long_prompt_chars     prompts longer than this are encoded in a thread, so that streams are not held up
    stats_interval_s      seconds between log lines; 0: none
    log_level, log_format of the process's log on stderr
    access_log            one line per HTTP request
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: SecretStr | None = None
    model_aliases: dict[str, str] = Field(default_factory=dict)
    chat_template: str | None = None
    limits: LimitsConfig = LimitsConfig()
    responses: ResponsesConfig = ResponsesConfig()
    stream_interval: int = Field(default=1, ge=1)
    keep_alive_s: float = Field(default=15.0, gt=0)
    long_prompt_chars: int = Field(default=8192, ge=0)
    stats_interval_s: float = Field(default=10.0, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = False
