"""The command line of a worker process: written by whoever starts it, read by main.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from tokenmill.core.config import FrozenConfig
from tokenmill.engine.config import EngineConfig
from tokenmill.operations.config import OperationsConfig

EngineKind = Literal["native", "simulated"]
ENGINE_KINDS: tuple[EngineKind, ...] = ("native", "simulated")


class SimulatedConfig(FrozenConfig):
    """The counting engine: it computes nothing, and its steps take as long as a model of them says.

    fixed_s, per_token_s  a step takes so long, and so much more for each scheduled token; unless hardware is given:
    hardware    key of the catalogue: steps take what a worker of `layout` there would take, at `precision`
    priced_as   name of the model in the price models; None: the model's own
    speed       2: twice as fast as modelled
    vocab_size  None: the tokenizer's; without one, 256
    """

    hardware: str | None = None
    layout: str = "tp1"
    precision: str | None = None
    priced_as: str | None = None
    speed: float = Field(default=1.0, gt=0)
    fixed_s: float = Field(default=2e-3, ge=0)
    per_token_s: float = Field(default=5e-5, ge=0)
    vocab_size: int | None = Field(default=None, ge=1)
    max_model_len: int = Field(default=4096, ge=2)
    kv_tokens: int = Field(default=65536, ge=1)


@dataclass(frozen=True, slots=True)
class WorkerArgs:
    """
    run_dir        of the deployment; holds the frontend's socket
    name           what clients call the model
    model          path of the model, already resolved; with the simulated engine: of a tokenizer, or ""
    num_workers    workers that share this machine
    index          which of them this is: it gets that share of the cores; None: all cores
    watts          draw of this worker's share, for the modelled meter; None: no meter at all
    started_s      host-monotonic second at which the process was spawned; None: take it from the system
    parent_pid     the supervisor; None when started by hand
    """

    run_dir: Path
    worker_id: str
    name: str
    model: str
    incarnation: int = 0
    engine: EngineKind = "native"
    engine_config: EngineConfig = field(default_factory=EngineConfig)
    simulated_config: SimulatedConfig = field(default_factory=SimulatedConfig)
    operations_config: OperationsConfig = field(default_factory=OperationsConfig)
    num_workers: int = 1
    index: int | None = None
    watts: float | None = None
    started_s: float | None = None
    parent_pid: int | None = None

    def to_argv(self) -> list[str]:
        """What follows `tokenmill worker`."""
        argv = [
            f"--run-dir={self.run_dir}",
            f"--worker-id={self.worker_id}",
            f"--name={self.name}",
            f"--model={self.model}",
            f"--incarnation={self.incarnation}",
            f"--engine={self.engine}",
            f"--engine-config={self.engine_config.model_dump_json(exclude_defaults=True)}",
            f"--simulated-config={self.simulated_config.model_dump_json(exclude_defaults=True)}",
            f"--operations-config={self.operations_config.model_dump_json(exclude_defaults=True)}",
            f"--num-workers={self.num_workers}",
        ]
        for flag, value in (
            ("index", self.index),
            ("watts", self.watts),
            ("started-s", self.started_s),
            ("parent-pid", self.parent_pid),
        ):
            if value is not None:
                argv.append(f"--{flag}={value}")
        return argv


def parse_worker_args(argv: Sequence[str]) -> WorkerArgs:
    """Inverse of `to_argv`; a wrong command line ends the process with code 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="tokenmill worker", description="One engine under a frontend.")
    parser.add_argument("--run-dir", type=Path, required=True)
    for required in ("--worker-id", "--name", "--model"):
        parser.add_argument(required, required=True)
    parser.add_argument("--incarnation", type=int, default=0)
    parser.add_argument("--engine", choices=ENGINE_KINDS, default="native")
    parser.add_argument("--engine-config", type=EngineConfig.model_validate_json, default=EngineConfig())
    parser.add_argument("--simulated-config", type=SimulatedConfig.model_validate_json, default=SimulatedConfig())
    parser.add_argument("--operations-config", type=OperationsConfig.model_validate_json, default=OperationsConfig())
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--index", type=int)
    parser.add_argument("--watts", type=float)
    parser.add_argument("--started-s", type=float)
    parser.add_argument("--parent-pid", type=int)
    return WorkerArgs(**vars(parser.parse_args(argv)))
