"""From a DeploymentConfig to the command lines of its processes. Not responsible for: running them (operations)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenmill.api.arguments import FrontendArgs
from tokenmill.cost.rates import DeviceRate, resolve_rate
from tokenmill.models.aliases import ALIASES
from tokenmill.models.fetch_wheel import Progress
from tokenmill.models.store import resolve_model
from tokenmill.operations.serve import LaunchContext, ProcessSpec
from tokenmill.operations.worker.arguments import WorkerArgs
from tokenmill.recipes.config import DeploymentConfig, ModelConfig

_COMMAND = (sys.executable, "-m", "tokenmill.cli.main")


@dataclass(frozen=True, slots=True)
class Processes:
    frontend: ProcessSpec
    workers: tuple[ProcessSpec, ...]


def fetch_models(config: DeploymentConfig, progress: Progress) -> list[str]:
    """The path of each model of `config`, fetched where it is missing."""
    return [_path_of(model, progress) for model in config.models]


def _path_of(model: ModelConfig, progress: Progress) -> str:
    if model.worker == "simulated" and model.model not in ALIASES:  # nothing is computed: all it can use is a tokenizer
        return str(Path(model.model).resolve()) if Path(model.model).exists() else ""
    return str(resolve_model(model.model, progress).resolve())


def build_processes(given: DeploymentConfig, resolved: DeploymentConfig, paths: Sequence[str]) -> Processes:
    """
    given     as the user wrote it: tells which price is an estimate
    resolved  without `auto`; paths: of its models, in order
    """
    num_workers = sum(model.workers or 1 for model in resolved.models)
    rate = resolve_rate(given.cost.price_per_hour, given.cost.watts, share=1 / num_workers)
    pairs = [pair for pair in zip(resolved.models, paths, strict=True) for _ in range(pair[0].workers or 1)]
    workers = {f"worker-{index}": pair for index, pair in enumerate(pairs)}
    expected = {worker_id: model.name for worker_id, (model, _) in workers.items()}
    env = _frontend_args(resolved, rate, expected, Path()).to_env()
    frontend = ProcessSpec("frontend", _frontend_argv(resolved, rate, expected), env)
    specs = [
        ProcessSpec(worker_id, _worker_argv(model, path, resolved, rate, num_workers, index), _worker_env())
        for index, (worker_id, (model, path)) in enumerate(workers.items())
    ]
    return Processes(frontend, tuple(specs))


def _frontend_args(config: DeploymentConfig, rate: DeviceRate, expected: dict[str, str], run_dir: Path) -> FrontendArgs:
    return FrontendArgs(
        run_dir=run_dir,
        rate=rate,
        expected=expected,
        api_config=config.api,
        operations_config=config.operations,
        slo=config.cost.slo,
        ledger=None if config.cost.ledger is None else str(Path(config.cost.ledger).absolute()),
        budgets=config.cost.budgets,
    )


def _frontend_argv(
    config: DeploymentConfig, rate: DeviceRate, expected: dict[str, str]
) -> Callable[[LaunchContext], Sequence[str]]:
    def argv(context: LaunchContext) -> Sequence[str]:
        args = _frontend_args(config, rate, expected, context.run_dir)
        return [*_COMMAND, "frontend", *args.to_argv(), f"--parent-pid={context.parent_pid}"]

    return argv


def _worker_env() -> dict[str, str]:
    """Threads of a worker that wait must not spin: the frontend and other workers want the same cores.

    On 2 busy cores this halved the CPU time of a decode batch and raised its rate by a factor of 1.3 to 2
    (docs/lab-log.md). Read by the OpenMP runtime when torch is loaded; a value of the user's stays.
    """
    return {} if "OMP_WAIT_POLICY" in os.environ else {"OMP_WAIT_POLICY": "PASSIVE"}


def _worker_argv(
    model: ModelConfig, path: str, config: DeploymentConfig, rate: DeviceRate, num_workers: int, index: int
) -> Callable[[LaunchContext], Sequence[str]]:
    def argv(context: LaunchContext) -> Sequence[str]:
        args = WorkerArgs(
            run_dir=context.run_dir,
            worker_id=context.name,
            name=model.name,
            model=path,
            incarnation=context.incarnation,
            engine=model.worker,
            simulated_config=model.simulated,
            engine_config=model.engine,
            operations_config=config.operations,
            num_workers=num_workers,
            index=index,
            watts=rate.watts,
            started_s=context.started_s,
            parent_pid=context.parent_pid,
        )
        return [*_COMMAND, "worker", *args.to_argv()]

    return argv
