"""docs/extending.md as a user would follow it: its files, as a package with metadata, under its own tests."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.tiny import write_tiny_llama

DOC = Path(__file__).parents[2] / "docs" / "extending.md"
_FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the documented files, and the dist-info that an installer would make of its pyproject.toml."""
    folder = tmp_path_factory.mktemp("package")
    for name, content in _FILE.findall(DOC.read_text(encoding="utf-8")):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _python(package: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.run([sys.executable, *args], env=env, cwd=package, capture_output=True, text=True, timeout=50)


def test_the_documented_policy_passes_the_conformance_suite(package: Path) -> None:
    result = _python(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shortest_prefill.py")
    assert result.returncode == 0 and "1 passed" in result.stdout, result.stdout


def test_a_policy_that_breaks_a_rule_fails_the_suite(package: Path, tmp_path: Path) -> None:
    """The suite can fail: always the first worker starves the others."""
    code = (
        "from tokenmill.operations.router.base import Placement\n"
        "from tokenmill.operations.router.conformance import check_router_policy\n"
        "class First:\n"
        "    def choose(self, request, snapshot):\n"
        "        return Placement(snapshot.members[0].worker_id)\n"
        "check_router_policy(lambda seed: First())\n"
    )
    result = _python(package, "-c", code)
    assert result.returncode != 0 and "no starvation" in result.stderr


def test_serve_accepts_the_policy_by_name_and_names_it_among_the_possible(package: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tokenmill.operations.router.registry import ROUTER_POLICIES, load_policy\n"
        "print(ROUTER_POLICIES.names()); load_policy('shortest_prefil', 0)"
    )
    result = _python(package, "-c", code)
    assert "'shortest_prefill'" in result.stdout
    assert "did you mean 'shortest_prefill'?" in result.stderr


def test_the_documented_architecture_computes_what_a_llama_computes(package: Path, tmp_path: Path) -> None:
    llama = write_tiny_llama(tmp_path / "llama")
    owl = write_tiny_llama(tmp_path / "owl")
    config = json.loads((owl / "config.json").read_text())
    config["architectures"] = ["OwlForCausalLM"]
    config["num_owls"] = config.pop("num_hidden_layers")
    (owl / "config.json").write_text(json.dumps(config))
    code = (
        "import sys\n"
        "from tokenmill.llm import LLM\n"
        "from tokenmill.core.request import SamplingParams\n"
        "for path in sys.argv[1:]:\n"
        "    llm = LLM(path, dtype='float32', num_threads=1)\n"
        "    print(llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].token_ids)\n"
    )
    result = _python(package, "-c", code, str(llama), str(owl))
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == second and len(json.loads(first)) == 8


@pytest.mark.ci
def test_serve_runs_with_the_policy(package: Path) -> None:
    code = (
        "from tokenmill.bench.local_server import local_server\n"
        "import urllib.request\n"
        "args = ['m', '--set', 'models.0.worker=simulated', '--workers', '2', '--router-policy', 'shortest_prefill']\n"
        "with local_server(args, is_quiet=True) as url:\n"
        "    print(urllib.request.urlopen(f'{url}/ready').status)\n"
    )
    result = _python(package, "-c", code)
    assert result.stdout.strip() == "200", result.stderr
