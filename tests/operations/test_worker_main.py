"""The worker process's main, run in this process: command line, exit codes, start time, meters."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.wire import Goodbye, Hello
from tokenmill.engine.config import EngineConfig
from tokenmill.infra.meter import CatalogueMeter, EnergySource
from tokenmill.infra.power import OpenedMeter
from tokenmill.operations.child import read_setup_error
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker import main as worker_main
from tokenmill.operations.worker.arguments import SimulatedConfig, WorkerArgs, parse_worker_args


def make_args(tmp_path: Path, **changes: object) -> WorkerArgs:
    fields: dict[str, object] = {
        "run_dir": tmp_path,
        "worker_id": "w0",
        "name": "m",
        "model": "",
        "engine": "simulated",
        "parent_pid": os.getppid(),
    }
    return WorkerArgs(**(fields | changes))  # type: ignore[arg-type]


def test_the_command_line_says_all(tmp_path: Path) -> None:
    args = make_args(
        tmp_path / "with space",
        model="/models/a b",
        incarnation=3,
        engine_config=EngineConfig(max_num_seqs=7, deterministic=True),
        simulated_config=SimulatedConfig(fixed_s=0.5),
        operations_config=OperationsConfig(heartbeat_interval_s=0.25),
        num_workers=2,
        watts=12.5,
        started_s=123.456,
    )
    assert parse_worker_args(args.to_argv()) == args
    assert parse_worker_args(WorkerArgs(tmp_path, "w", "n", "m").to_argv()) == WorkerArgs(tmp_path, "w", "n", "m")


@pytest.mark.parametrize(
    "argv", [[], ["--run-dir=/x", "--worker-id=w", "--name=n", "--model=m", '--engine-config={"max_num_sequ":1}']]
)
def test_a_wrong_command_line_is_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_worker_args(argv)
    assert ended.value.code == 2
    capsys.readouterr()


class QuietMain:
    """main() with its process-wide effects kept away: signals, threads, the socket."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[object] = []
        self.lingers: list[float] = []
        monkeypatch.setattr(worker_main.ParentWatch, "arm", lambda watch: None)
        monkeypatch.setattr(worker_main.SignalLifeline, "install", lambda lifeline: None)
        monkeypatch.setattr(worker_main.SignalLifeline, "wants_drain", lambda lifeline: True)
        monkeypatch.setattr(worker_main, "ZmqLink", self.link)

    def link(self, endpoint: str, identity: bytes, wake_fd: int, drain_wake: object) -> QuietMain:
        self.endpoint, self.identity = endpoint, identity
        return self

    def send(self, message: object) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float) -> list:
        return []

    def was_lost(self) -> bool:
        return False

    def close(self, linger_s: float) -> None:
        self.lingers.append(linger_s)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> QuietMain:
    return QuietMain(monkeypatch)


def test_a_drained_worker_ends_with_0(tmp_path: Path, quiet: QuietMain) -> None:
    args = make_args(
        tmp_path, incarnation=4, simulated_config=SimulatedConfig(vocab_size=99), started_s=time.monotonic()
    )
    assert worker_main.main(args.to_argv()) == 0
    hello = quiet.sent[0]
    assert isinstance(hello, Hello) and isinstance(quiet.sent[-1], Goodbye)
    assert (hello.incarnation, hello.pid, hello.started_s) == (4, os.getpid(), args.started_s)
    assert (hello.card.name, hello.card.vocab_size) == ("m", 99)
    assert quiet.identity == b"w0#4" and quiet.endpoint == f"ipc://{tmp_path}/frontend.sock"
    assert quiet.lingers == [1.0]


def test_an_engine_failure_ends_with_1_and_is_logged(
    tmp_path: Path, quiet: QuietMain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(lifeline: object) -> bool:
        raise RuntimeError("engine on fire")

    monkeypatch.setattr(worker_main.SignalLifeline, "wants_drain", fail)
    assert worker_main.main(make_args(tmp_path).to_argv()) == 1
    assert "engine on fire" in caplog.text and isinstance(quiet.sent[-1], Goodbye)


def test_a_start_that_fails_as_asked_ends_with_2_and_tells_why(tmp_path: Path, quiet: QuietMain) -> None:
    args = make_args(tmp_path, engine_config=EngineConfig(kv_cache_memory_bytes=1))
    assert worker_main.main(args.to_argv()) == 2
    assert isinstance(read_setup_error(tmp_path, "w0"), ConfigError)
    assert quiet.sent == []


def test_a_start_by_hand_that_fails_says_one_line(
    tmp_path: Path, quiet: QuietMain, capsys: pytest.CaptureFixture[str]
) -> None:
    args = make_args(tmp_path, engine_config=EngineConfig(kv_cache_memory_bytes=1), parent_pid=None)
    assert worker_main.main(args.to_argv()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_memory_is_a_resource_error(tmp_path: Path, quiet: QuietMain, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    def load_engine(*args: object, **more: object) -> None:
        raise MemoryError

    monkeypatch.setitem(sys.modules, "tokenmill.engine.load", types.SimpleNamespace(load_engine=load_engine))
    assert worker_main.main(make_args(tmp_path, engine="native").to_argv()) == 2
    assert "does not fit the memory" in read_setup_error(tmp_path, "w0").message


def test_the_native_engine_is_loaded_with_the_given_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    calls = []

    def load_engine(model: str, config: EngineConfig, **more: object) -> str:
        calls.append((model, config, more))
        return "engine"

    monkeypatch.setitem(sys.modules, "tokenmill.engine.load", types.SimpleNamespace(load_engine=load_engine))
    args = make_args(
        tmp_path, engine="native", model="/m", engine_config=EngineConfig(max_num_seqs=3), num_workers=2, index=1
    )
    assert worker_main.build_engine(args) == "engine"
    assert calls == [("/m", EngineConfig(max_num_seqs=3), {"name": "m", "num_workers": 2, "worker_index": 1})]


@pytest.mark.parametrize(("source", "is_read"), [(EnergySource.MEASURED, True), (EnergySource.MODELLED, False)])
def test_only_measured_joules_are_reported(
    source: EnergySource, is_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []

    def open_meter(context: object, *, share: float) -> OpenedMeter:
        shares.append(share)
        meter = CatalogueMeter(context.watts, context.clock)
        meter.source = source
        return OpenedMeter("x", meter, "")

    monkeypatch.setattr(worker_main, "open_meter", open_meter)
    read_joules = worker_main._measure_energy(make_args(tmp_path, watts=10.0, num_workers=4))
    assert (read_joules is not None) is is_read and shares == [0.25]
    assert worker_main._measure_energy(make_args(tmp_path)) is None


def test_a_process_knows_when_it_started() -> None:
    age_s = time.monotonic() - worker_main.process_started_s()
    assert 0 <= age_s < 3600


def test_without_a_kernel_record_the_start_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(*args: object, **more: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", no_proc)
    started_s = worker_main.process_started_s()
    monkeypatch.undo()
    assert 0 <= time.monotonic() - started_s < 5
