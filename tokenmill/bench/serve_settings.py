"""Everything that `bench serve` can be told. Not responsible for: the load itself (load_plan), doing it (serve)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenmill.bench.load_plan import LoadSettings
from tokenmill.core.errors import ConfigError
from tokenmill.core.slo import SLO


@dataclass(frozen=True, slots=True)
class ServeBench:
    """
    models           by role of the workload; one: it answers for every role; none: the first that the server lists
    prompts          "text" works with every server; "ids" is exact and needs vocab_size
    num_unloaded     requests sent one by one before the load, and the base of the automatic SLO
    num_warmup       requests of the same load before the measurement, drained
    slo              None: the workload's, else 3 x the unloaded medians
    usd_per_hour     of all the server's devices; None: asked of the server
    folder           where requests and trace are written while they happen; None: nowhere
    run_id           makes the tokens of this run its own; None: a new one, so that no cache has seen them
    """

    url: str
    load: LoadSettings
    models: tuple[str, ...] = ()
    endpoint: Literal["completions", "chat"] = "completions"
    api_key: str | None = None
    ignore_eos: bool = True
    prompts: Literal["text", "ids"] = "text"
    vocab_size: int | None = None
    num_unloaded: int = 3
    num_warmup: int = 0
    slo: SLO | None = None
    usd_per_hour: float | None = None
    watts: float | None = None
    num_devices: int = 1
    folder: Path | None = None
    run_id: str | None = None

    def check(self) -> None:
        """ConfigError for settings that contradict each other."""
        self.load.check()
        for option, value in (("--price-per-hour", self.usd_per_hour), ("--watts", self.watts)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{option}={value} is not possible: give a number from 0")
        for option, count, least in (
            ("--num-devices", self.num_devices, 1),
            ("--num-unloaded", self.num_unloaded, 0),
            ("--num-warmup", self.num_warmup, 0),
        ):
            if count < least:
                raise ConfigError(f"{option}={count} is not possible: give a whole number from {least}")
        if self.prompts == "ids" and (self.endpoint != "completions" or not self.vocab_size):
            raise ConfigError("prompts as token ids need --endpoint completions and --vocab-size of the model")
        num_roles = self.load.workload.num_models if self.load.workload else 1
        if len(self.models) > 1 and len(self.models) != num_roles:
            raise ConfigError(f"{len(self.models)} models for {num_roles} roles: give one, or one for each role")

    def settings(self) -> dict[str, Any]:
        """For the result file: everything but the key."""
        names = ("url", "endpoint", "ignore_eos", "prompts", "vocab_size", "num_unloaded", "num_warmup")
        own = {name: getattr(self, name) for name in (*names, "usd_per_hour", "watts", "num_devices")}
        return own | self.load.told()
