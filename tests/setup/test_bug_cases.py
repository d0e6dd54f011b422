"""docs/bug-cases.md: complete, and true about the tests it names."""

import ast
from pathlib import Path

from tests.bug_cases import TABLE, TESTS, find_covering_tests, read_rows, rewrite

TEXT = TABLE.read_text(encoding="utf-8")


def test_all_eighty_cases_have_one_row() -> None:
    assert list(read_rows(TEXT)) == [f"S{number:02}" for number in range(1, 81)]
    assert all("#" in about for about, _ in read_rows(TEXT).values())


def test_every_named_test_exists() -> None:
    for case, (_, covered) in read_rows(TEXT).items():
        for test in covered.split("<br>"):
            if test.startswith("open, issue "):
                continue
            path, *names = test.strip("`").split("::")
            assert _has(TESTS.parent / path, names), f"{case} names {test}, which does not exist"


def _has(path: Path, names: list[str]) -> bool:
    if not path.is_file():
        return False
    node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for name in names:
        found = [child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name]
        if not found:
            return False
        node = found[0]
    return True


def test_no_covered_case_is_called_open() -> None:
    rows = read_rows(TEXT)
    stale = [case for case in find_covering_tests() if rows[case][1].startswith("open")]
    assert stale == [], f"run `python -m tests.bug_cases` to fill {stale}"


def test_rewriting_changes_only_covered_rows() -> None:
    text = "| S01 | a#1 | x | open, issue 12 |\n| S02 | b#2 | y | open, issue 11 |\n"
    new = rewrite(text, {"S02": ["tests/a.py::test_b"]})
    assert new == "| S01 | a#1 | x | open, issue 12 |\n| S02 | b#2 | y | `tests/a.py::test_b` |\n"
