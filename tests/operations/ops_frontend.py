"""A frontend process without HTTP, for process tests: the real Dispatcher behind a unix socket of JSON lines.

One request object per connection; `generate` streams deltas until the client closes. Run as a script.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import msgspec

from tests.operations.ops_fakes import RATE, make_request
from tokenmill.core.errors import SetupError, TokenmillError
from tokenmill.operations.addresses import frontend_endpoint
from tokenmill.operations.child import ParentWatch, report_setup_error
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatcher import Dispatcher


class Frontend:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = json.loads(await reader.readline())
            if asked["op"] == "generate":
                await self.generate(asked, reader, writer)
            else:
                writer.write(json.dumps(self.view(asked)).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def generate(self, asked: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pump = asyncio.create_task(self.pump(asked, writer))
        gone = asyncio.create_task(reader.read())
        await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (pump, gone):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task

    async def pump(self, asked: dict, writer: asyncio.StreamWriter) -> None:
        request = make_request(
            asked["request_id"], asked.get("model", "m"), asked.get("num_tokens", 4), asked.get("max_tokens", 4)
        )
        try:
            async with aclosing(self.dispatcher.generate(request)) as deltas:
                async for delta in deltas:
                    writer.write(json.dumps({"ids": delta.token_ids, "finish": delta.finish_reason}).encode() + b"\n")
                    await writer.drain()
        except TokenmillError as error:
            writer.write(json.dumps({"error": error.to_dict()}).encode() + b"\n")

    def view(self, asked: dict) -> object:
        match asked["op"]:
            case "health":
                return msgspec.to_builtins(self.dispatcher.health())
            case "members":
                return msgspec.to_builtins(self.dispatcher.snapshot())
            case "time":
                return {kind: amount.seconds for kind, amount in self.dispatcher.ledger.totals().lines.items()}
            case "balance":
                balance = self.dispatcher.ledger.check_balance(asked["now_s"])
                return {"is_balanced": balance.is_balanced, "process_s": balance.process_s}
        raise AssertionError(asked)


async def run(args: argparse.Namespace) -> None:
    stop, stop_now = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal)
    config = OperationsConfig.model_validate_json(args.operations_config)
    expected = dict(pair.split("=") for pair in args.expect)
    dispatcher = Dispatcher(frontend_endpoint(args.run_dir), config, rate=RATE, expected=expected)
    async with dispatcher:
        server = await asyncio.start_unix_server(Frontend(dispatcher).serve_one, args.control)
        await stop.wait()
        drain = asyncio.create_task(dispatcher.drain())
        now = asyncio.create_task(stop_now.wait())
        await asyncio.wait((drain, now), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)  # what was delivered is written out
        server.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--control")
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--operations-config")
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--fail")
    args = parser.parse_args()
    watch = ParentWatch(args.parent_pid, args.run_dir)
    watch.arm()
    if args.fail:
        report_setup_error(args.run_dir, "frontend", SetupError(args.fail))
        return 2
    with contextlib.suppress(FileNotFoundError):
        os.unlink(args.control)
    asyncio.run(run(args))
    watch.clean_up()
    return 0


if __name__ == "__main__":
    sys.exit(main())
