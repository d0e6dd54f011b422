"""A whole deployment for process tests: the real supervisor over the JSON-lines frontend and counting workers."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence

from tokenmill.core.errors import TokenmillError
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.serve import LaunchContext, ProcessSpec, serve
from tokenmill.operations.worker.arguments import SimulatedConfig, WorkerArgs


def frontend_spec(args: argparse.Namespace, expected: Sequence[str]) -> ProcessSpec:
    def argv(context: LaunchContext) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tests.operations.ops_frontend",
            f"--run-dir={context.run_dir}",
            f"--control={args.control}",
            f"--parent-pid={context.parent_pid}",
            f"--operations-config={args.operations_config}",
            *(f"--expect={worker_id}=m" for worker_id in expected),
            *([f"--fail={args.fail_frontend}"] if args.fail_frontend else []),
        ]

    return ProcessSpec("frontend", argv)


def worker_spec(name: str, args: argparse.Namespace) -> ProcessSpec:
    def argv(context: LaunchContext) -> list[str]:
        worker = WorkerArgs(
            run_dir=context.run_dir,
            worker_id=context.name,
            name="m",
            model=args.model,
            incarnation=context.incarnation,
            engine=args.engine,
            simulated_config=SimulatedConfig.model_validate_json(args.simulated),
            operations_config=OperationsConfig.model_validate_json(args.operations_config),
            num_workers=args.workers,
            started_s=context.started_s,
            parent_pid=context.parent_pid,
        )
        return [sys.executable, "-m", args.worker_module, *worker.to_argv()]

    return ProcessSpec(name, argv)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--engine", default="simulated")
    parser.add_argument("--model", default="")
    parser.add_argument("--simulated", default="{}")
    parser.add_argument("--operations-config", default="{}")
    parser.add_argument("--fail-frontend")
    parser.add_argument("--worker-module", default="tokenmill.operations.worker.main")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="serve %(message)s")
    names = [f"w{index}" for index in range(args.workers)]
    workers = [worker_spec(name, args) for name in names]
    config = OperationsConfig.model_validate_json(args.operations_config)
    try:
        return asyncio.run(serve(frontend_spec(args, names), workers, config))
    except TokenmillError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
