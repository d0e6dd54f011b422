"""The command line of the frontend process: written by whoever starts it, read by server.py.

The API key travels in the environment, since command lines can be read by every user of the machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from pydantic import SecretStr

from tokenmill.api.config import ApiConfig
from tokenmill.cost.budgets import BudgetConfig
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.config import OperationsConfig

API_KEY_VARIABLE = "TOKENMILL_API_KEY"


@dataclass(frozen=True, slots=True)
class FrontendArgs:
    """
    run_dir      of the deployment; its socket is made there
    rate         price and watts of one worker's share
    expected     worker_id -> model
    slo          objectives that make tokens good, as core/slo spells them
    ledger       file that the ledger goes on in and is written to; None: it starts anew with each frontend
    budgets      limits on what sessions and tenants may spend
    parent_pid   the supervisor; None when started by hand
    """

    run_dir: Path
    rate: DeviceRate
    expected: Mapping[str, str]
    name: str = "frontend"
    api_config: ApiConfig = field(default_factory=ApiConfig)
    operations_config: OperationsConfig = field(default_factory=OperationsConfig)
    slo: str | None = None
    ledger: str | None = None
    budgets: BudgetConfig = field(default_factory=BudgetConfig)
    parent_pid: int | None = None

    def to_argv(self) -> list[str]:
        """What follows `tokenmill frontend`."""
        argv = [
            f"--run-dir={self.run_dir}",
            f"--name={self.name}",
            f"--rate={msgspec.json.encode(self.rate).decode()}",
            f"--expected={msgspec.json.encode(self.expected).decode()}",
            f"--api-config={self.api_config.model_dump_json(exclude_defaults=True, exclude={'api_key'})}",
            f"--operations-config={self.operations_config.model_dump_json(exclude_defaults=True)}",
            f"--budgets={self.budgets.model_dump_json(exclude_defaults=True)}",
        ]
        for flag, value in (("slo", self.slo), ("ledger", self.ledger), ("parent-pid", self.parent_pid)):
            if value is not None:
                argv.append(f"--{flag}={value}")
        return argv

    def to_env(self) -> dict[str, str]:
        """What must be added to the environment."""
        key = self.api_config.api_key
        return {} if key is None else {API_KEY_VARIABLE: key.get_secret_value()}


def parse_frontend_args(argv: Sequence[str], env: Mapping[str, str] | None = None) -> FrontendArgs:
    """Inverse of `to_argv` and `to_env`; a wrong command line ends the process with code 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="tokenmill frontend", description="The HTTP door of a deployment.")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--name", default="frontend")
    parser.add_argument("--rate", type=_rate, required=True)
    parser.add_argument("--expected", type=_expected, required=True)
    parser.add_argument("--api-config", type=ApiConfig.model_validate_json, default=ApiConfig())
    parser.add_argument("--operations-config", type=OperationsConfig.model_validate_json, default=OperationsConfig())
    parser.add_argument("--slo")
    parser.add_argument("--ledger")
    parser.add_argument("--budgets", type=BudgetConfig.model_validate_json, default=BudgetConfig())
    parser.add_argument("--parent-pid", type=int)
    given = vars(parser.parse_args(argv))
    key = (os.environ if env is None else env).get(API_KEY_VARIABLE)
    if key:
        given["api_config"] = given["api_config"].model_copy(update={"api_key": SecretStr(key)})
    return FrontendArgs(**given)


def _rate(text: str) -> DeviceRate:
    return msgspec.json.decode(text, type=DeviceRate)


def _expected(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str])
