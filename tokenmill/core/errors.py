"""The one tree of typed errors that the outside world sees. Internal invariants are plain `assert`s.

TokenmillError
├── BadRequestError            400  the request itself is wrong
│   ├── ContextLengthError     400  prompt + output cannot fit the model or the KV pool
│   └── CapabilityError        400  a valid wish that this model or build cannot serve
├── BudgetError                402  the session's or tenant's dollars are spent
├── ModelNotFoundError         404
├── PayloadTooLargeError       413
├── OverloadedError            429  retryable: queue is full
├── WorkerLostError            503  retryable: the worker died with the request
├── UnavailableError           503  retryable: starting, draining, or no worker
├── DeadlineError              504  retryable: a wait ran out
├── InternalError              500  a bug of ours
└── SetupError                 (exit code 2) the system cannot be started as asked
    ├── ConfigError            a setting is unknown, contradictory or out of range
    ├── CheckpointError        a model folder or file cannot be used
    ├── DownloadError          a model cannot be fetched
    └── ResourceError          port, disk, memory

A message holds three things: what was asked, what is possible, what to do. Prompts are never quoted.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TokenmillError(Exception):
    """Base of all typed errors; `status`, `type` and `code` follow the OpenAI error body."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def to_dict(self) -> dict[str, Any]:
        """The OpenAI error object: message, type, param, code (plus `retryable` where it is true)."""
        body: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.retryable:
            body["retryable"] = True
        return body


class BadRequestError(TokenmillError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class ContextLengthError(BadRequestError):
    code = "context_length_exceeded"


class CapabilityError(BadRequestError):
    code = "unsupported"


class BudgetError(TokenmillError):
    """402, not 429: waiting does not help, and OpenAI's clients repeat a 429 by themselves."""

    status, type, code = 402, "insufficient_quota", "budget_exceeded"


class ModelNotFoundError(TokenmillError):
    status, type, code = 404, "invalid_request_error", "model_not_found"


class PayloadTooLargeError(TokenmillError):
    status, type, code = 413, "invalid_request_error", "payload_too_large"


class OverloadedError(TokenmillError):
    status, type, code, retryable = 429, "overloaded_error", "overloaded", True


class WorkerLostError(TokenmillError):
    status, type, code, retryable = 503, "server_error", "worker_lost", True


class UnavailableError(TokenmillError):
    status, type, code, retryable = 503, "server_error", "unavailable", True


class DeadlineError(TokenmillError):
    status, type, code, retryable = 504, "timeout_error", "deadline_exceeded", True


class InternalError(TokenmillError):
    status, type, code = 500, "server_error", "internal_error"


class SetupError(TokenmillError):
    """Raised before anything is served; the CLI prints its message on one line and exits with code 2."""

    type, code = "setup_error", "setup_error"


class ConfigError(SetupError):
    code = "config_error"


class CheckpointError(SetupError):
    code = "checkpoint_error"


class DownloadError(SetupError):
    code = "download_error"


class ResourceError(SetupError):
    code = "resource_error"


def _tree(cls: type[TokenmillError]) -> list[type[TokenmillError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _tree(sub))]


_BY_CODE = {cls.code: cls for cls in _tree(TokenmillError)}


def from_code(code: str, message: str, param: str | None = None) -> TokenmillError:
    """Rebuild a typed error that crossed a process boundary; an unknown code becomes InternalError."""
    return _BY_CODE.get(code, InternalError)(message, param=param)
