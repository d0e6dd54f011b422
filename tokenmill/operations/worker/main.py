"""The worker process: read the command line, load the engine, run the loop, leave with a code that says why.

0 drained or told to stop · 1 the engine failed (a restart may help) · 2 it cannot start as asked (it never will).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from tokenmill.core.clock import SystemClock
from tokenmill.core.errors import ResourceError, SetupError
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.infra.meter import EnergySource, MeterContext
from tokenmill.infra.power import open_meter
from tokenmill.operations.addresses import frontend_endpoint, worker_identity
from tokenmill.operations.child import ParentWatch, SignalLifeline, report_setup_error
from tokenmill.operations.worker.arguments import WorkerArgs, parse_worker_args
from tokenmill.operations.worker.link import ZmqLink
from tokenmill.operations.worker.loop import EngineLike, WorkerLoop

_log = logging.getLogger(__name__)
#: The last frames wait this long for the frontend to take them.
_LINGER_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `tokenmill worker`."""
    args = parse_worker_args(sys.argv[1:] if argv is None else argv)
    started_s = args.started_s if args.started_s is not None else process_started_s()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {args.worker_id} %(levelname)s %(message)s"
    )
    watch = ParentWatch(args.parent_pid, args.run_dir)
    watch.arm()
    lifeline = SignalLifeline(watch)
    lifeline.install()
    try:
        read_joules = _measure_energy(args)
        engine = build_engine(args)
    except SetupError as error:
        report_setup_error(args.run_dir if args.parent_pid is not None else None, args.worker_id, error)
        return 2
    try:
        return _serve(args, engine, lifeline, started_s, read_joules)
    finally:
        watch.clean_up()


def run_and_leave(argv: Sequence[str] | None = None) -> NoReturn:
    """`main` as a process: once the link is closed nothing is left to say, and tearing torch down takes 0.4 s."""
    code = main(argv)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(
    args: WorkerArgs,
    engine: EngineLike,
    lifeline: SignalLifeline,
    started_s: float,
    read_joules: Callable[[], float] | None,
) -> int:
    identity = worker_identity(args.worker_id, args.incarnation)
    link = ZmqLink(frontend_endpoint(args.run_dir), identity, lifeline.wake_fd, lifeline.drain_wake)
    loop = WorkerLoop(
        engine,
        link,
        lifeline,
        worker_id=args.worker_id,
        incarnation=args.incarnation,
        pid=os.getpid(),
        started_s=started_s,
        config=args.operations_config,
        clock=SystemClock(),
        read_joules=read_joules,
    )
    try:
        loop.run()
    except Exception:
        _log.exception("worker %s: the engine failed", args.worker_id)
        return 1
    finally:
        link.close(linger_s=0.0 if lifeline.wants_stop() else _LINGER_S)
    return 0


def build_engine(args: WorkerArgs) -> EngineLike:
    """The engine of `--engine`; raises SetupError when it cannot be had. Torch is imported here and not before."""
    if args.engine == "simulated":
        from tokenmill.engine.simulated import simulated_engine

        simulated = args.simulated_config
        return simulated_engine(
            args.engine_config,
            name=args.name,
            vocab_size=simulated.vocab_size or _tokenizer_size(args.model),
            max_model_len=simulated.max_model_len,
            kv_tokens=simulated.kv_tokens,
            step_time=step_time_of(args),
            tokenizer_path=args.model or None,
        )
    from tokenmill.engine.load import load_engine

    try:
        return load_engine(
            args.model, args.engine_config, name=args.name, num_workers=args.num_workers, worker_index=args.index
        )
    except MemoryError as error:
        raise ResourceError(
            f"model {args.name!r} does not fit the memory of this machine: take a smaller one, or fewer workers"
        ) from error


def _tokenizer_size(path: str) -> int:
    """What a simulated worker counts up to: every id that a text may become."""
    from tokenmill.text.tokenizer import Tokenizer

    return Tokenizer.load(path).vocab_size if path else 256


def step_time_of(args: WorkerArgs) -> StepTime:
    """Of a simulated worker: what its settings say, or what they say it runs on."""
    from tokenmill.engine.runners.step_times import LinearStepTime, ScaledStepTime

    simulated = args.simulated_config
    model: StepTime = LinearStepTime(simulated.fixed_s, simulated.per_token_s)
    if simulated.hardware is not None:
        from tokenmill.cost.steptime.load import step_time_for

        name = simulated.priced_as or args.name
        model = step_time_for(name, simulated.hardware, simulated.layout, simulated.precision)
    return model if simulated.speed == 1.0 else ScaledStepTime(model, 1 / simulated.speed)


def _measure_energy(args: WorkerArgs) -> Callable[[], float] | None:
    """A hardware counter if there is one; without, the frontend multiplies watts by seconds."""
    if args.watts is None:
        return None
    opened = open_meter(MeterContext(args.watts, SystemClock()), share=1 / args.num_workers)
    return opened.meter.read_joules if opened.source is EnergySource.MEASURED else None


def process_started_s() -> float:
    """Host-monotonic second at which this process was started: by the kernel's record, or now where there is none."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # field 22: start time since boot, proc(5)
    except OSError:
        return time.monotonic()
    since_boot_s = ticks / os.sysconf("SC_CLK_TCK")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s
    return time.monotonic() - age_s


if __name__ == "__main__":
    run_and_leave()
