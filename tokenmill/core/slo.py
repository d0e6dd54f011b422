"""Latency objectives of a request: parsing `--slo` and `--goodput`, and deciding whether one was met.

Not responsible for measuring (workloads, api) or for counting good tokens (cost/ledger).
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields

from tokenmill.core.errors import ConfigError
from tokenmill.core.units import parse_seconds

_EXAMPLE = "write e.g. ttft=500ms,tpot=50ms (or in milliseconds: ttft:500 tpot:50)"
#: vLLM's --goodput calls end-to-end latency e2el.
_KEYS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "e2el": "e2e_s"}


@dataclass(frozen=True, slots=True)
class SLO:
    """Upper bounds; None: no such objective. At least one is set.

    ttft_s  arrival to first output token
    tpot_s  mean gap between the output tokens of the request, the first excluded
    e2e_s   arrival to last output token
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not None]
        if not given:
            raise ConfigError(f"an SLO without an objective: {_EXAMPLE}")
        for name, value in given:
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"SLO objective {name}={value} must be a positive time: {_EXAMPLE}")

    @classmethod
    def parse(cls, text: str) -> SLO:
        """`ttft=500ms,tpot=50ms` (units required), or vLLM's `ttft:500 tpot:50` (milliseconds)."""
        bounds: dict[str, float] = {}
        for part in text.replace(",", " ").split():
            name, value_s = _parse_part(part, text)
            if name in bounds:
                raise ConfigError(f"SLO {text!r} names {name.removesuffix('_s')} twice: keep one of them")
            bounds[name] = value_s
        if not bounds:
            raise ConfigError(f"SLO {text!r} holds no objective: {_EXAMPLE}")
        return cls(**bounds)

    def is_met(self, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
        """True when every objective holds.

        A request of one token has no TPOT (None), so that objective holds for it; a missing TTFT or E2E means that
        nothing came back, so theirs does not.
        """
        return (
            _is_within(ttft_s, self.ttft_s, if_missing=False)
            and _is_within(tpot_s, self.tpot_s, if_missing=True)
            and _is_within(e2e_s, self.e2e_s, if_missing=False)
        )

    def __str__(self) -> str:
        """The canonical spelling; `parse` reads it back."""
        named = (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s))
        return ",".join(f"{name}={value * 1e3:.12g}ms" for name, value in named if value is not None)


def _is_within(value: float | None, bound: float | None, *, if_missing: bool) -> bool:
    if bound is None:
        return True
    return if_missing if value is None else value <= bound


def _parse_part(part: str, text: str) -> tuple[str, float]:
    """One `key=duration` or `key:milliseconds` -> (field name, seconds)."""
    key, separator, value = part.partition("=" if "=" in part else ":")
    field = _KEYS.get(key.strip().lower())
    if field is None:
        near = difflib.get_close_matches(key.lower(), _KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(_KEYS)}; {_EXAMPLE}"
        raise ConfigError(f"SLO {text!r} has an unknown objective {key!r}: {hint}")
    if not separator or not value:
        raise ConfigError(f"SLO objective {part!r} has no bound: {_EXAMPLE}")
    if separator == ":":
        return field, _parse_ms(value, part)
    if value[-1].isdigit():
        raise ConfigError(f"SLO objective {part!r} lacks a unit: {_EXAMPLE}")
    return field, parse_seconds(value)


def _parse_ms(value: str, part: str) -> float:
    try:
        return float(value) / 1e3
    except ValueError:
        raise ConfigError(f"SLO objective {part!r}: after a colon comes a number of milliseconds: {_EXAMPLE}") from None
