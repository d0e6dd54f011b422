"""The files around the code: Makefile, CI entry and documents say what is true."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tokenmill.cli.app import build_app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_makefile_has_at_most_ten_targets_and_help_for_each() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert targets is not None
    names = targets[1].split()
    assert len(names) <= 10
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    assert [name for name in names if not re.search(rf"^{name} ", listed, re.MULTILINE)] == []


def test_make_runs_nothing_twice(tmp_path: Path) -> None:
    """With both stamps newer than what they depend on, no target sets anything up."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    stamps = [tmp_path / ".venv" / "bin" / "python", tmp_path / ".venv" / ".ok", tmp_path / ".venv" / ".ok-test"]
    stamps[0].parent.mkdir(parents=True)
    for age, stamp in enumerate(stamps):
        stamp.touch()
        os.utime(stamp, (2_000_000_000 + age, 2_000_000_000 + age))
    plan = _plan(tmp_path, "serve", "PORT=1234", "MODEL=m")
    assert plan.strip() == ".venv/bin/tokenmill serve m --port 1234"
    assert "install" not in _plan(tmp_path, "test") and "-m pytest -n 2" in _plan(tmp_path, "test")
    os.utime(tmp_path / "constraints.txt", (2_100_000_000, 2_100_000_000))
    assert "-c constraints.txt -e '.[engine,gguf]'" in _plan(tmp_path, "serve")
    assert "--index-url" not in _plan(tmp_path, "serve")
    assert "--index-url http://x torch" in _plan(tmp_path, "serve", "TORCH_INDEX=http://x")


def _plan(folder: Path, *args: str) -> str:
    """What make would run."""
    return subprocess.run(["make", "-n", *args], cwd=folder, capture_output=True, text=True, timeout=30).stdout


def test_ci_entry_runs_the_three_tiers() -> None:
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert "for target in check test test-ci" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", document.read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (document.parent / t).exists()] == []


def test_every_command_of_the_readme_exists() -> None:
    app = build_app()
    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    names |= {group.name or "" for group in app.registered_groups}
    table = re.findall(r"^\| `tokenmill ([\w-]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(table) >= 6 and set(table) <= names


def test_architecture_is_one_page_and_names_packages_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    folders = re.findall(r"^├── (\w+)/|^└── (\w+)/", text, re.MULTILINE)
    assert {a or b for a, b in folders} == {
        path.name for path in (ROOT / "tokenmill").iterdir() if (path / "__init__.py").is_file()
    }


@pytest.mark.parametrize("decision", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda path: path.name)
def test_decisions_are_short_and_complete(decision: Path) -> None:
    text = decision.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    for part in ("**Context.**", "**Options.**", "**Choice", "**What would change our mind.**"):
        assert part in text
