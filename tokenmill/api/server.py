"""The frontend process: dispatcher and HTTP server in one asyncio loop, from the bound port to the last stream.

Standard output carries the banner and the ready line, standard error the log. Not responsible for: workers
(operations/), command lines (cli/).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import uvicorn
import uvloop

import tokenmill
from tokenmill.api.app import create_app
from tokenmill.api.arguments import FrontendArgs, parse_frontend_args
from tokenmill.api.config import ApiConfig
from tokenmill.api.context import ApiContext, Lifecycle
from tokenmill.api.http_protocol import limited_protocol
from tokenmill.api.ledger_file import LedgerFile, wall_epoch_s
from tokenmill.api.logs import set_up_logging
from tokenmill.api.stats_log import StatsLog
from tokenmill.core.clock import SystemClock
from tokenmill.core.errors import ResourceError, SetupError
from tokenmill.core.model_card import ModelCard
from tokenmill.core.slo import SLO
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.addresses import frontend_endpoint
from tokenmill.operations.child import ParentWatch, report_setup_error
from tokenmill.operations.dispatcher import Dispatcher
from tokenmill.operations.members import MemberState

logger = logging.getLogger(__name__)

_POLL_S = 0.05
#: After the last token is out, how long a client may take to read its answer.
_WRITE_S = 5.0
_BACKLOG = 2048
#: What a killed frontend loses of the bill at most; it is then billed as lost.
_LEDGER_INTERVAL_S = 5.0


def bind(config: ApiConfig) -> socket.socket:
    """The listening socket, taken before anything else is started; ResourceError when the address is not free."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio switches Nagle's delay off only for sockets that say they are TCP; with it an answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        listener.close()
        raise ResourceError(_bind_problem(config, error)) from None
    listener.setblocking(False)
    return listener


def _bind_problem(config: ApiConfig, error: Exception) -> str:
    where = f"cannot listen on {config.host} port {config.port}"
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"{where}: another process does; stop it, or choose another port with --port (0 takes a free one)"
    if code in (errno.EACCES, errno.EPERM):
        return f"{where}: not permitted; choose a port above 1023 with --port"
    return f"{where}: {error}; give an address of this machine with --host"


class Frontend:
    """One run of the frontend. `stop()` drains; called again, it cuts off what still runs."""

    def __init__(
        self,
        config: ApiConfig,
        dispatcher: Dispatcher,
        *,
        rate: DeviceRate | None = None,
        ledger_file: LedgerFile | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._rate = rate
        self._ledger_file = ledger_file
        self._out = out or sys.stdout
        self._lifecycle = Lifecycle(loading="loading: waiting for every worker")
        self._app = create_app(dispatcher, config, lifecycle=self._lifecycle, rate=rate)
        self._context: ApiContext = self._app.state.context
        self._server = _Server(_uvicorn_config(self._app, config))
        self._stop = asyncio.Event()
        self._cut = asyncio.Event()

    def stop(self) -> None:
        (self._cut if self._stop.is_set() else self._stop).set()

    async def run(self, listener: socket.socket) -> None:
        """Serve until stopped. A SetupError of the start (a tokenizer that does not load) comes out."""
        async with self._dispatcher:
            serving = asyncio.create_task(self._server.serve(sockets=[listener]))
            stats = StatsLog(self._dispatcher, SystemClock())
            helpers = [
                asyncio.create_task(self._announce(_url(self._config.host, listener))),
                asyncio.create_task(stats.run(self._config.stats_interval_s)),
            ]
            if self._ledger_file is not None:
                helpers.append(asyncio.create_task(self._ledger_file.run(_LEDGER_INTERVAL_S)))
            try:
                await self._until_stopped(serving, helpers)
                await self._drain()
            finally:
                await self._shut(serving, helpers)

    async def _until_stopped(self, serving: asyncio.Task[None], helpers: list[asyncio.Task[None]]) -> None:
        """Returns when asked to stop; a helper's failure comes out at once."""
        stopped = asyncio.create_task(self._stop.wait())
        waiting = {stopped, serving, *helpers}
        try:
            while not stopped.done() and not serving.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stopped.cancel()

    async def _drain(self) -> None:
        """Refuse new requests with 503, let what runs finish within the time, or until told again."""
        self._lifecycle.is_draining = True
        draining = asyncio.create_task(self._finish_running())
        cut = asyncio.create_task(self._cut.wait())
        await asyncio.wait((draining, cut), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, cut):
            task.cancel()
        await asyncio.gather(draining, cut, return_exceptions=True)
        if self._cut.is_set():
            await self._dispatcher.drain(0.0)
            await self._until_written(1.0)

    async def _finish_running(self) -> None:
        if not await self._dispatcher.drain():
            logger.warning("the drain time is over: the requests that still ran were cut off")
        await self._until_written(_WRITE_S)

    async def _until_written(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._lifecycle.num_inside:
                    await asyncio.sleep(_POLL_S)

    async def _shut(self, serving: asyncio.Task[None], helpers: list[asyncio.Task[None]]) -> None:
        for task in helpers:
            task.cancel()
        self._server.should_exit = True
        self._server.force_exit = self._cut.is_set()
        await asyncio.gather(serving, *helpers, return_exceptions=True)

    async def _announce(self, url: str) -> None:
        """Banner and ready line, once every worker has said Hello and its tokenizer is loaded."""
        while not self._has_all():
            await asyncio.sleep(_POLL_S)
            await self._context.models.preload()
        await self._context.models.preload()
        self._lifecycle.loading = None
        for line in banner(self._dispatcher, self._rate):
            print(line, file=self._out)
        print(f"tokenmill ready: {url} ({', '.join(sorted(self._context.models.cards()))})", file=self._out, flush=True)

    def _has_all(self) -> bool:
        """Nobody is still on the way, and every model has a worker; one that was given up is not waited for."""
        members = self._dispatcher.snapshot()
        is_coming = any(view.state is MemberState.STARTING or view.is_expected_back for view in members)
        ready = {view.model for view in members if view.state is MemberState.READY}
        return bool(members) and not is_coming and ready == {view.model for view in members}


class _Server(uvicorn.Server):
    """Signals are the business of `run_frontend`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: object, config: ApiConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=limited_protocol(config.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=config.access_log,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        backlog=_BACKLOG,
    )


def _url(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def banner(dispatcher: Dispatcher, rate: DeviceRate | None) -> list[str]:
    """What is being served, for people."""
    members = dispatcher.snapshot()
    lines = [f"tokenmill {tokenmill.__version__}"]
    for name, card in sorted(dispatcher.cards().items()):
        lines.append(_model_line(card, sum(view.model == name for view in members)))
    if rate is not None:
        note = ", estimated" if rate.is_estimated else ""
        lines.append(f"  one worker costs ${rate.usd_per_hour:.4g}/h and draws {rate.watts:.4g} W{note}; {rate.source}")
    return lines


def _model_line(card: ModelCard, num_workers: int) -> str:
    return (
        f"  {card.name}: {card.architecture}, {card.num_parameters / 1e6:.1f} M parameters, {card.dtype}, "
        f"context {card.max_model_len}; {num_workers} x {card.kv_capacity_tokens} tokens of KV cache "
        f"({card.kv_capacity_tokens / card.max_model_len:.1f} full contexts), {card.max_num_seqs} sequences at once"
    )


async def run_frontend(frontend: Frontend, listener: socket.socket) -> None:
    """Run with signals: the first SIGTERM or SIGINT drains, the second stops."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, frontend.stop)
    try:
        await frontend.run(listener)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `tokenmill frontend`. 0 stopped, 2 cannot start as asked (a restart does not help)."""
    args = parse_frontend_args(sys.argv[1:] if argv is None else argv)
    watch = ParentWatch(args.parent_pid, args.run_dir)
    watch.arm()
    try:
        listener = bind(args.api_config)
        set_up_logging(args.api_config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(args, listener))
    except SetupError as error:
        report_setup_error(args.run_dir if args.parent_pid is not None else None, args.name, error)
        return 2
    finally:
        watch.clean_up()
    return 0


async def _serve(args: FrontendArgs, listener: socket.socket) -> None:
    slo = None if args.slo is None else SLO.parse(args.slo)
    if args.ledger is None:
        await _serve_with(args, listener, Ledger(slo, epoch_s=wall_epoch_s()), None)
        return
    with LedgerFile(Path(args.ledger), args.run_dir.name, slo) as file:
        await _serve_with(args, listener, file.ledger, file)


async def _serve_with(
    args: FrontendArgs, listener: socket.socket, ledger: Ledger, ledger_file: LedgerFile | None
) -> None:
    dispatcher = Dispatcher(
        frontend_endpoint(args.run_dir),
        args.operations_config,
        rate=args.rate,
        expected=args.expected,
        ledger=ledger,
        budgets=args.budgets,
    )
    frontend = Frontend(args.api_config, dispatcher, rate=args.rate, ledger_file=ledger_file)
    await run_frontend(frontend, listener)


if __name__ == "__main__":
    sys.exit(main())
