"""The command as users run it: in this process for what is quick, as a real process where processes matter."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tokenmill.cli.main import main


@dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout."""
        return json.loads(self.out.strip().splitlines()[-1])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """run("models", "--json") in this process."""

    def call(*args: str) -> Run:
        code = main(args)
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return call


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("TOKENMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "200")
