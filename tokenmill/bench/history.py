"""`bench history`: earlier commits of this repository beside the present one, under the same load by today's generator.

Not responsible for: the load and the ratios (compare).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenmill
from tokenmill.bench.compare import CompareBench, Tell, run_compare_bench
from tokenmill.bench.local_server import local_server
from tokenmill.bench.systems import System
from tokenmill.core.errors import ConfigError
from tokenmill.workloads.curve_page import page

_CHARTED = ("usd_per_mtok_total", "usd_per_mtok_output", "output_tput_per_s", "ttft_s_p50", "tpot_s_p50")


@dataclass(frozen=True, slots=True)
class Release(System):
    """A commit served from a work tree of its own, by this interpreter and its packages."""

    tree: Path | None = None

    @contextmanager
    def running(self) -> Iterator[str]:
        assert self.tree is not None
        with local_server(self.arguments, is_quiet=True, tree=self.tree) as url:
            yield url


def repository() -> Path:
    """ConfigError where tokenmill does not run from a git checkout."""
    folder = Path(tokenmill.__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        raise ConfigError(f"bench history needs a git checkout of tokenmill, and {folder} is none: clone it, run there")
    return folder


def run_history_bench(bench: CompareBench, refs: Sequence[str], arguments: Sequence[str], tell: Tell) -> dict[str, Any]:
    """`bench` without systems; each of `refs` is served with `arguments`. The last is the base of the ratios."""
    root = repository()
    commits = {ref: _git(root, "rev-parse", "--verify", f"{ref}^{{commit}}") for ref in dict.fromkeys(refs)}
    if len(commits) < 2:
        raise ConfigError("a history needs two commits: give --refs v0.1.0,HEAD")
    with tempfile.TemporaryDirectory(prefix="tokenmill-history-") as folder:
        trees = {ref: Path(folder) / str(index) for index, ref in enumerate(commits)}
        try:
            for ref, tree in trees.items():
                tell(f"{ref} is {commits[ref][:12]}")
                _git(root, "worktree", "add", "--detach", str(tree), commits[ref])
            releases = [Release(ref, None, tuple(arguments), tree) for ref, tree in reversed(trees.items())]
            result = run_compare_bench(replace(bench, systems=releases), tell)
        finally:
            for tree in trees.values():
                subprocess.run(
                    ["git", "-C", str(root), "worktree", "remove", "--force", str(tree)], capture_output=True
                )
    result["settings"]["systems"] = [{"label": ref, "commit": commit} for ref, commit in commits.items()]
    return result | {"bench": "history", "releases": _releases(result, commits)}


def _releases(result: dict[str, Any], commits: dict[str, str]) -> list[dict[str, Any]]:
    """One row per commit, oldest as given first."""
    metrics = result["metrics"]
    return [
        {"ref": ref, "commit": commit}
        | {name: metrics[name]["median"].get(ref) if name in metrics else None for name in _CHARTED}
        for ref, commit in commits.items()
    ]


def history_page(result: dict[str, Any]) -> str:
    data = {"releases": result["releases"], "about": {k: result[k] for k in ("settings", "environment", "problems")}}
    return page("history", "Cost per token, release by release", data)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ConfigError(f"git {' '.join(arguments[:2])} failed ({said[-1] if said else 'no message'}): check --refs")
    return done.stdout.strip()
