"""A deployment inside this process: one engine in a thread behind the same door as a server's, but no port.

Not responsible for: which requests are sent (api/batch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from tokenmill.api.app import create_app
from tokenmill.api.batch.files import BatchOutput
from tokenmill.api.batch.lines import read_requests
from tokenmill.api.batch.run import BatchSummary, run_batch
from tokenmill.cli.launch import fetch_models
from tokenmill.core.errors import ConfigError
from tokenmill.cost.rates import resolve_rate
from tokenmill.models.fetch_wheel import Progress
from tokenmill.operations.addresses import frontend_endpoint
from tokenmill.operations.child import remove_run_dir
from tokenmill.operations.dispatcher import Dispatcher
from tokenmill.operations.in_process import WORKER_ID, InProcessWorker
from tokenmill.operations.serve import make_run_dir
from tokenmill.operations.worker.arguments import WorkerArgs
from tokenmill.operations.worker.main import build_engine, process_started_s
from tokenmill.recipes.config import DeploymentConfig
from tokenmill.recipes.resolve import resolve

_POLL_S = 0.02
_WATCH_S = 0.2


class OfflineServer:
    """Fetches and loads the one model of `config`."""

    def __init__(self, config: DeploymentConfig, progress: Progress) -> None:
        if len(config.models) != 1:
            raise ConfigError(f"{len(config.models)} models: without a server one is possible")
        (path,) = fetch_models(config, progress)
        self._config, _ = resolve(config)
        self._rate = resolve_rate(config.cost.price_per_hour, config.cost.watts)
        (model,) = self._config.models
        self._model = model.name
        args = WorkerArgs(
            run_dir=Path(),
            worker_id=WORKER_ID,
            name=model.name,
            model=path,
            engine=model.worker,
            simulated_config=model.simulated,
            engine_config=model.engine,
            operations_config=self._config.operations,
        )
        self._engine = build_engine(args)

    async def run_batch(
        self, lines: Iterable[bytes], output: BatchOutput, concurrency: int | None, on_done: Callable[[], None]
    ) -> BatchSummary:
        """
        concurrency  requests in flight; None: enough to fill every step
        on_done      called after each line
        """
        run_dir = make_run_dir()
        try:
            async with self._dispatcher(run_dir) as dispatcher:
                operations = self._config.operations
                with InProcessWorker(self._engine, run_dir, operations, started_s=process_started_s()) as worker:
                    await _until_ready(dispatcher, worker)
                    api = self._config.api.model_copy(update={"api_key": None})
                    batch = run_batch(
                        create_app(dispatcher, api, rate=self._rate),
                        read_requests(lines, api.limits.max_body_bytes),
                        output,
                        num_in_flight=concurrency or 2 * self._engine.card.max_num_seqs,
                        on_done=on_done,
                    )
                    return await _unless_failed(batch, worker)
        finally:
            remove_run_dir(run_dir)

    def _dispatcher(self, run_dir: Path) -> Dispatcher:
        expected = {WORKER_ID: self._model}
        return Dispatcher(frontend_endpoint(run_dir), self._config.operations, rate=self._rate, expected=expected)


async def _until_ready(dispatcher: Dispatcher, worker: InProcessWorker) -> None:
    while not dispatcher.cards():
        worker.check()
        await asyncio.sleep(_POLL_S)


async def _unless_failed(batch: Coroutine[Any, Any, BatchSummary], worker: InProcessWorker) -> BatchSummary:
    """Nobody restarts this engine: when it fails, so does the batch, which can be run again from there."""
    task = asyncio.ensure_future(batch)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_WATCH_S)
            worker.check()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
