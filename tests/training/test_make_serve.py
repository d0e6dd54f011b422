"""`make serve`: SmolLM2 with v4-nano beside it; v4-nano alone, and saying so, where SmolLM2 cannot be fetched."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Stands for the command: tells how it was called, and refuses to pull when told so.
FAKE = '#!/bin/sh\necho "called: $*"\nif [ "$1" = pull ] && [ -n "$NO_NETWORK" ]; then exit 5; fi\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout that is set up, with the command replaced."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    command = tmp_path / ".venv" / "bin" / "tokenmill"
    command.parent.mkdir(parents=True)
    command.write_text(FAKE)
    command.chmod(0o755)
    for age, name in enumerate(("bin/python", ".ok", ".ok-test")):
        stamp = tmp_path / ".venv" / name
        stamp.touch()
        os.utime(stamp, (2_000_000_000 + age, 2_000_000_000 + age))
    return tmp_path


def _serve(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "serve", "PORT=1234"], cwd=folder, env=os.environ | environ, capture_output=True, text=True, timeout=30
    )


def test_the_default_is_smollm2_and_v4_nano_beside_it(folder: Path) -> None:
    pulled, served = _serve(folder).stdout.splitlines()
    assert pulled == "called: pull smollm2"
    words = served.split()
    assert words[:4] == ["called:", "serve", "smollm2", "v4-nano"] and words[-2:] == ["--port", "1234"]
    assert f"models.0.engine.num_threads={os.cpu_count()}" in words and "models.1.engine.num_threads=1" in words


def test_without_a_network_v4_nano_is_served_alone(folder: Path) -> None:
    done = _serve(folder, NO_NETWORK="1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "called: serve v4-nano --port 1234"
    assert "smollm2 cannot be fetched: serving v4-nano alone" in done.stderr
