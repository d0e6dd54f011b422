"""From settings to sessions and a loop: which load, how much of it, for how long. Not responsible for: sending it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tokenmill.core.errors import ConfigError
from tokenmill.workloads.arrivals import ramp_times
from tokenmill.workloads.conductor import ClosedLoop, Conductor, OpenLoop
from tokenmill.workloads.definition import Workload
from tokenmill.workloads.sessions import Session, generate
from tokenmill.workloads.sizes import kv_pool_tokens
from tokenmill.workloads.trace import read_trace

_SECONDS_AHEAD = 1.25  # more arrivals are planned than a duration needs, since gaps are random


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """One load. Exactly one of workload and trace; concurrency or rates (traces bring their times).

    concurrency   top-level sessions alive (closed loop); with rates: most requests in flight
    rates_per_s   sessions started per second (open loop); several: a ramp from each to the next
    burstiness    see workloads.arrivals
    ramp_s        the sessions of a closed loop start spread over this time
    num_requests  send no more; None: no limit (then a duration or a trace must end it)
    duration_s    start nothing later
    speed         of a trace: 2 replays it in half the time
    as_schedule   of a trace: every line at its time, sessions or not
    """

    workload: Workload | None = None
    trace: Path | None = None
    concurrency: int | None = None
    rates_per_s: tuple[float, ...] = ()
    burstiness: float = 1.0
    ramp_s: float = 0.0
    num_requests: int | None = None
    duration_s: float | None = None
    speed: float = 1.0
    as_schedule: bool = False
    seed: int = 0

    def check(self) -> None:
        """ConfigError for settings that contradict each other."""
        if (self.workload is None) == (self.trace is None):
            raise ConfigError("a load is a workload or a trace: give one of the two")
        if self.trace is None and self.concurrency is None and not self.rates_per_s:
            raise ConfigError("neither concurrency nor request rate is given: use --concurrency N or --request-rate R")
        if self.trace is None and self.num_requests is None and self.duration_s is None:
            raise ConfigError("the load has no end: use --num-prompts N or --duration S")
        for name, value in (("--concurrency", self.concurrency), ("--num-prompts", self.num_requests)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value} must be 1 or more")
        bounds = {"--duration": self.duration_s, "--burstiness": self.burstiness, "--speed": self.speed}
        for rate in self.rates_per_s:
            bounds["--request-rate"] = min(rate, bounds.get("--request-rate") or rate)
        for name, positive in bounds.items():
            if positive is not None and not positive > 0:
                raise ConfigError(f"{name} {positive:g} must be above 0")

    @property
    def asked_level(self) -> int | None:
        """In flight when steady, where that is known beforehand: a closed loop without gaps."""
        if self.rates_per_s or self.workload is None or self.workload.gap_s.largest() > 0:
            return None
        return None if self.workload.sub_agents is not None else self.concurrency

    @property
    def max_in_flight(self) -> int | None:
        return self.concurrency if self.rates_per_s else None

    def conductor(self, run: str) -> Conductor:
        """Ready to start; `run` makes its tokens its own."""
        sessions = self._sessions(run)
        return Conductor(sessions, self._loop(sessions), self.num_requests, self.duration_s)

    def warm_up(self, run: str, num_requests: int) -> Conductor:
        """The same load in closed loop, `num_requests` of it; it is to be drained before the measurement."""
        sessions = self._sessions(run)
        return Conductor(sessions, ClosedLoop(self.concurrency or 8), num_requests)

    def _sessions(self, run: str) -> Iterable[Session]:
        if self.trace is not None:
            return read_trace(self.trace, run=run, speed=self.speed, keeps_sessions=not self.as_schedule)
        assert self.workload is not None
        return generate(self.workload, seed=self.seed, run=run)

    def _loop(self, sessions: Iterable[Session]) -> ClosedLoop | OpenLoop:
        if self.rates_per_s:
            return OpenLoop(self._times())
        if self.concurrency is not None:
            return ClosedLoop(self.concurrency, self.ramp_s)
        assert isinstance(sessions, list), "a trace"
        return OpenLoop([session.arrival_s or 0.0 for session in sessions])

    def _times(self) -> list[float]:
        """As many starts as the limits can need."""
        number = self.num_requests
        if number is None:
            assert self.duration_s is not None
            number = max(1, round(max(self.rates_per_s) * self.duration_s * _SECONDS_AHEAD) + 20)
        return ramp_times(number, self.rates_per_s, burstiness=self.burstiness, seed=self.seed)

    def told(self) -> dict[str, Any]:
        """For the result file."""
        workload = self.workload
        return {
            "workload": workload and workload.name,
            "workload_version": workload and workload.version,
            "workload_digest": workload and workload.digest,
            "workload_scale": workload and workload.scale,
            "kv_pool_share": workload and workload.kv_pool_share,
            "kv_pool_tokens": self._kv_pool_tokens(),
            "trace": str(self.trace) if self.trace else None,
            "concurrency": self.concurrency,
            "request_rate": self.rates_per_s[0] if len(self.rates_per_s) == 1 else list(self.rates_per_s) or None,
            "burstiness": self.burstiness,
            "ramp_s": self.ramp_s,
            "num_prompts": self.num_requests,
            "duration_s": self.duration_s,
            "speed": self.speed,
            "as_schedule": self.as_schedule,
            "seed": self.seed,
        }

    def _kv_pool_tokens(self) -> int | None:
        """What the definition wants the server's pool to hold at this load, for whoever starts the server."""
        if self.workload is None or self.concurrency is None:
            return None
        return kv_pool_tokens(self.workload, concurrency=self.concurrency, seed=self.seed)

    def first_sessions(self, run: str, number: int) -> list[Session]:
        """For requests sent alone, whose tokens nobody else has."""
        return list(islice(self._sessions(run), number))
