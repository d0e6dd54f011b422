"""Command lines of the processes of a deployment: what each is told, and that its own parser reads it back."""

from pathlib import Path

import pytest

from tokenmill.api.arguments import parse_frontend_args
from tokenmill.cli.launch import build_processes, fetch_models
from tokenmill.models.fetch_wheel import no_progress
from tokenmill.operations.serve import LaunchContext, ProcessSpec
from tokenmill.operations.worker.arguments import parse_worker_args
from tokenmill.recipes.load import load_deployment
from tokenmill.recipes.resolve import Host, resolve

HOST = Host(num_threads=8, available_bytes=2**33)
FLAGS = {"api_key": "sk-secret", "slo": "ttft=1s", "price_per_hour": "4", "watts": "100", "max_model_len": "128"}


@pytest.fixture
def processes():
    sets = ["models.0.worker=simulated", "models.1.worker=simulated", "models.0.workers=3"]
    config = load_deployment(["one", "two"], flags=FLAGS, sets=sets)
    resolved, _ = resolve(config, host=HOST, facts_of=lambda spec: None)
    return build_processes(config, resolved, fetch_models(config, no_progress))


def _argv(spec: ProcessSpec) -> list[str]:
    """What follows the program, `-m tokenmill.cli.main` and the name of the process."""
    return list(spec.argv(LaunchContext(Path("/tmp/tokenmill-x"), spec.name, 2, 5.0, 77)))[4:]


def test_frontend_is_told_what_to_expect_and_the_price_of_one_worker(processes) -> None:
    args = parse_frontend_args(_argv(processes.frontend), processes.frontend.env)
    assert args.expected == {"worker-0": "one", "worker-1": "one", "worker-2": "one", "worker-3": "two"}
    assert (args.rate.usd_per_hour, args.rate.watts) == (1.0, 25.0)
    assert (args.slo, args.parent_pid, args.run_dir) == ("ttft=1s", 77, Path("/tmp/tokenmill-x"))
    assert args.api_config.api_key is not None and args.api_config.api_key.get_secret_value() == "sk-secret"


def test_no_secret_stands_in_a_command_line(processes) -> None:
    for spec in (processes.frontend, *processes.workers):
        assert not [part for part in _argv(spec) if "sk-secret" in part]


def test_workers_are_told_their_model_and_their_share(processes) -> None:
    args = [parse_worker_args(_argv(spec)) for spec in processes.workers]
    assert [(arg.worker_id, arg.name) for arg in args] == [
        ("worker-0", "one"), ("worker-1", "one"), ("worker-2", "one"), ("worker-3", "two"),
    ]  # fmt: skip
    first = args[0]
    assert (first.num_workers, first.watts, first.engine, first.incarnation) == (4, 25.0, "simulated", 2)
    assert (first.engine_config.max_model_len, first.engine_config.num_threads) == (128, 2)
    assert (first.started_s, first.parent_pid) == (5.0, 77)


def test_waiting_threads_of_a_worker_do_not_spin_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_deployment(["m"], flags=FLAGS, sets=["models.0.worker=simulated"])
    resolved, _ = resolve(config, host=HOST)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert build_processes(config, resolved, [""]).workers[0].env == {"OMP_WAIT_POLICY": "PASSIVE"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert build_processes(config, resolved, [""]).workers[0].env == {}
