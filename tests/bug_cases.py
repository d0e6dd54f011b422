"""Writes the column "covered by" of docs/bug-cases.md from the docstrings of the tests: `python -m tests.bug_cases`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "bug-cases.md"
_CASE = re.compile(r"\bS(?:0[1-9]|[1-7][0-9]|80)\b")
_ROW = re.compile(r"^\| (S\d\d) \| (.*) \| ([^|]*) \|$")


def find_covering_tests() -> dict[str, list[str]]:
    """Case -> `path::test` of every test whose docstring names it."""
    covering: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for name, text in _tests(module):
            for case in sorted(set(_CASE.findall(text))):
                covering.setdefault(case, []).append(f"{path.relative_to(TESTS.parent)}::{name}")
    return covering


def _tests(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, docstring) of the tests in a module or class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _tests(child, f"{prefix}{child.name}::")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name.startswith("test"):
            yield prefix + child.name, ast.get_docstring(child) or ""


def read_rows(text: str) -> dict[str, tuple[str, str]]:
    """Case -> (address and description, covered by)."""
    return {match[1]: (match[2], match[3]) for line in text.splitlines() if (match := _ROW.match(line))}


def rewrite(text: str, covering: dict[str, list[str]]) -> str:
    """`text` with the covering tests filled in; a row nobody covers keeps what it says."""
    lines = []
    for line in text.splitlines():
        match = _ROW.match(line)
        if match and match[1] in covering:
            line = f"| {match[1]} | {match[2]} | {'<br>'.join(f'`{test}`' for test in covering[match[1]])} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(rewrite(TABLE.read_text(encoding="utf-8"), find_covering_tests()), encoding="utf-8")
