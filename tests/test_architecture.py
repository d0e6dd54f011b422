"""The shape of the source tree: imports go down the ladder, decisions are pure, torch stays where it computes.

Everything is read from the files themselves, so new files are held to it from their first commit.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tokenmill"

#: Top to bottom: each imports only itself and what is below it (ARCHITECTURE.md).
LADDER = (
    *("cli", "bench", "planning", "sim", "workloads", "llm", "recipes", "api"),
    *("operations", "engine", "cost", "models", "kernels", "infra", "text", "core"),
)
#: Public names that `tokenmill/__init__.py` may hand out, and the rung they come from.
ROOT_NAMES = {"LLM": "llm", "SamplingParams": "core", "__version__": None}

TORCH_FREE = ("core", "text", "cost", "workloads", "sim", "planning", "recipes", "api", "operations")
#: Of computing packages, what the router, the recipes and the twin need (a folder ends in /).
TORCH_FREE_FILES = (
    *("engine/config.py", "engine/scheduler.py", "engine/simulated.py", "engine/kvcache/", "models/store.py"),
)
TORCH_FREE_NAMES = ("work.py", "groups.py")

#: State machines: time and randomness are passed in, effects are at the edge.
PURE = (
    *("engine/scheduler.py", "engine/kvcache/", "operations/fleet.py", "operations/admission.py"),
    *("operations/dispatch.py", "operations/supervisor.py", "operations/router/", "cost/ledger.py", "cost/life.py"),
    *("cost/cells.py", "cost/spending.py", "cost/budgets.py", "cost/report.py", "cost/journal.py", "cost/margin.py"),
    *("cost/tco.py", "core/ticks.py"),
    *("cost/requests.py", "cost/shares.py", "cost/steptime/", "cost/tally.py", "cost/totals.py"),
    *("core/slo.py", "core/cache_groups.py", "core/work_description.py"),
)
IMPURE = {"torch", "zmq", "socket", "asyncio", "threading", "time", "datetime", "secrets", "uuid", "subprocess", "os"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def ids(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_under(path: Path, names: tuple[str, ...]) -> bool:
    """`names`: files, and folders that end in /, below the package."""
    return any(ids(path) == name or (name.endswith("/") and ids(path).startswith(name)) for name in names)


def rung_of_module(name: str) -> str | None:
    """`tokenmill.engine.scheduler` -> "engine"; None for the root itself and for other packages."""
    parts = name.split(".")
    return parts[1] if parts[0] == "tokenmill" and len(parts) > 1 else None


def rung_of_file(path: Path) -> str | None:
    """`tokenmill/llm.py` is a rung of its own; running the package (`__main__`) is the CLI."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return {"__init__": None, "__main__": "cli"}.get(first, first)


def module_of_file(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of all that is imported anywhere in the file: in functions and for types only, too."""
    package = module_of_file(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            if module == "tokenmill":
                yield from ((node.lineno, f"tokenmill.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Registries name their built-ins as text: "tokenmill.infra.rapl:open_rapl_meter".
            if re.fullmatch(r"tokenmill(\.\w+)+:\w+", node.value):
                yield node.lineno, node.value.partition(":")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from ((node.lineno, name) for name in names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def upward_imports(path: Path, tree: ast.AST) -> list[str]:
    mine = rung_of_file(path)
    found = []
    for line, name in imports(path, tree):
        rung = rung_of_module(name)
        rung = ROOT_NAMES.get(rung, rung) if rung else None
        if rung is None or mine is None:
            continue
        if rung not in LADDER:
            found.append(f"{ids(path)}:{line}: {name} has no place on the ladder")
        elif LADDER.index(rung) < LADDER.index(mine):
            found.append(f"{ids(path)}:{line}: {mine} imports {name}, which is above it")
    return found


# -- the ladder --


def test_every_package_has_a_place_on_the_ladder() -> None:
    rungs = {rung for path in files() if (rung := rung_of_file(path)) is not None}
    assert rungs <= set(LADDER), f"give these a place in LADDER and ARCHITECTURE.md: {sorted(rungs - set(LADDER))}"


def test_imports_go_down_the_ladder() -> None:
    found = [fault for path in files() for fault in upward_imports(path, parse(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("file", "source", "is_fault"),
    [
        ("engine/x.py", "from tokenmill.core.request import Request", False),
        ("engine/x.py", "import tokenmill.cost.rates", False),
        ("engine/x.py", "from tokenmill.engine.plan import Plan", False),
        ("core/x.py", "from tokenmill import __version__", False),
        ("core/x.py", "from tokenmill.infra import devices", True),
        ("core/x.py", "import tokenmill.text.chat as chat", True),
        ("cost/x.py", "def f():\n    from tokenmill.engine import engine", True),
        ("cost/x.py", "if TYPE_CHECKING:\n    from tokenmill.engine.engine import Engine", True),
        ("cost/x.py", "from tokenmill import engine", True),
        ("models/x.py", "from ..cost import ledger", True),
        ("models/layers/x.py", "from .. import base", False),
        ("recipes/x.py", "from tokenmill import LLM", True),
        ("recipes/x.py", "import tokenmill.llm", True),
        ("workloads/x.py", "from tokenmill.llm import LLM", False),
        ("infra/x.py", "R = Registry('m', 'tokenmill.models', {'a': 'tokenmill.models.llama:Llama'})", True),
        ("infra/x.py", "importlib.import_module('tokenmill.engine.load')", True),
        ("core/x.py", "from tokenmill.gadgets import g", True),
    ],
)
def test_the_ladder_test_sees_what_it_should(file: str, source: str, is_fault: bool) -> None:
    assert bool(upward_imports(PACKAGE / file, ast.parse(source))) is is_fault


def test_package_files_are_empty() -> None:
    """Importing one module must not import its neighbours; only the root has a version and lazy public names."""
    full = [ids(p) for p in files() if p.name == "__init__.py" and p.parent != PACKAGE and p.read_text().strip()]
    assert not full, f"must be empty: {full}"


def test_every_folder_is_a_package() -> None:
    """Without its `__init__.py` a folder is left out of the wheel by some builders."""
    folders = {p.parent for p in files()}
    assert not [ids(f) for f in folders if not (f / "__init__.py").exists()]


# -- purity --


def impure_imports(tree: ast.AST, path: Path) -> list[str]:
    """`random.Random` may be named, as the type of what is passed in; the module's own generator may not be used."""
    found = [f"{ids(path)}:{line}: {name}" for line, name in imports(path, tree) if name.split(".")[0] in IMPURE]
    for node in ast.walk(tree):
        is_random = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        if is_random and isinstance(node, ast.Attribute) and node.attr != "Random":
            found.append(f"{ids(path)}:{node.lineno}: random.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "random" and {a.name for a in node.names} != {"Random"}:
            found.append(f"{ids(path)}:{node.lineno}: from random import …")
    return found


def test_decisions_are_pure() -> None:
    """A published conformance suite is a test, not a decision."""
    pure = [path for path in files() if is_under(path, PURE) and path.name != "conformance.py"]
    gone = [name for name in PURE if not (PACKAGE / name).exists()]
    assert not gone, f"renamed? update PURE: {gone}"
    found = [fault for path in pure for fault in impure_imports(parse(path), path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "is_fault"),
    [
        ("import time", True),
        ("from datetime import datetime", True),
        ("import torch.nn", True),
        ("import random\nx = random.random()", True),
        ("from random import choice", True),
        ("import random\ndef f(rng: random.Random): ...", False),
        ("import math", False),
    ],
)
def test_the_purity_test_sees_what_it_should(source: str, is_fault: bool) -> None:
    assert bool(impure_imports(ast.parse(source), PACKAGE / "cost" / "ledger.py")) is is_fault


# -- torch --

_IMPORT_ALL = """
import importlib, json, sys, traceback

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"{name} is blocked in this test", name=name)

sys.meta_path.insert(0, Block())
failed = {}
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
    except BaseException:
        failed[name] = traceback.format_exc(limit=-3)
print(json.dumps(failed))
"""


def is_torch_free(path: Path) -> bool:
    is_in_package = rung_of_file(path) in (*TORCH_FREE, None)
    return is_in_package or path.name in TORCH_FREE_NAMES or is_under(path, TORCH_FREE_FILES)


def test_torch_free_modules_import_where_torch_is_blocked() -> None:
    """In one fresh process; a router in front of other engines is installed without torch."""
    modules = [module_of_file(path) for path in files() if is_torch_free(path)]
    assert {"tokenmill", "tokenmill.core.request", "tokenmill.cost.ledger"} <= set(modules)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL], input=json.dumps(modules), capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(f"{name}:\n{trace}" for name, trace in failed.items())


# -- what does not belong into the repository --

_WORK, _SHARED = "/wo" + "rk/", "sha" + "red/"
FORBIDDEN = {
    "a path of one machine": re.compile(re.escape(_WORK) + r"(main|\.|sha)"),
    "a folder outside the repository": re.compile(
        r"\.\./" + _SHARED + r"|\b" + _SHARED + r"(design\.md|reference|hooks)"
    ),
    "a home of one user": re.compile(r"/(home|Users)/(?!you\b|user\b|me\b)\w+/"),
}


def forbidden_words(text: str) -> list[tuple[int, str]]:
    return [
        (text.count("\n", 0, match.start()) + 1, what)
        for what, pattern in FORBIDDEN.items()
        for match in pattern.finditer(text)
    ]


def test_tracked_files_speak_of_the_project_alone() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are tracked")
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if not path.is_file():  # deleted in the working tree
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary
        found += [f"{name}:{line}: {what}" for line, what in forbidden_words(text)]
    assert not found, "\n".join(found)


def test_the_word_test_sees_what_it_should() -> None:
    assert [line for line, _ in forbidden_words(f"x\nsee {_WORK}main\n")] == [2]
    assert forbidden_words(f"as in ../{_SHARED}design.md")
    assert forbidden_words(f"`{_SHARED}reference/style.md`")
    assert not forbidden_words("kernels/linear/work.py, a shared/private page, n_shared/8, models/work/x")
