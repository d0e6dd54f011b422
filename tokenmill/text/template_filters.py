"""Jinja filters and string methods for chat templates, each with a bound on what it makes. See sandbox.py."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import Environment
from jinja2.filters import FILTERS, do_format, do_indent, do_round, make_attrgetter
from jinja2.utils import pass_environment

from tokenmill.text.render_budget import RenderLimitError, check_format, current

# fmt: off
#: Filters of Jinja whose result is not much larger than what they get. The others are not there.
_PLAIN = [
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "int",
    "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round",
    "safe", "select", "selectattr", "sort", "string", "title", "trim", "truncate", "unique", "upper", "wordcount",
]
STR_METHODS = frozenset([
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex",
    "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
])
# fmt: on
_MAX_WIDTH = 64


def bounded_filters() -> dict[str, Callable[..., Any]]:
    """All filters that a chat template may use, by name."""
    own = {"format": _format, "indent": _indent, "join": _join, "replace": _replace, "sum": _sum}
    own |= {"round": _round, "tojson": _to_json}
    return {name: paying(function) for name, function in ({name: FILTERS[name] for name in _PLAIN} | own).items()}


def paying(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with a step before it and its result paid for."""

    @functools.wraps(function)  # keeps Jinja's mark that says which context comes first
    def with_budget(*args: Any, **kwargs: Any) -> Any:
        current().step()
        return current().made(function(*args, **kwargs))

    return with_budget


def str_method(text: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`text.name`; for the methods that can make much of little, the function behind their filter."""
    if name == "replace":
        return functools.partial(_replace, text)
    return functools.partial(_join_parts, text) if name == "join" else method


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(value), str(old), str(new)
    current().spend(text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


@pass_environment
def _join(environment: Environment, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
    return _join_parts(str(d), value if attribute is None else map(make_attrgetter(environment, attribute), value))


def _join_parts(separator: str, parts: Iterable[Any]) -> str:
    texts = []
    for part in parts:
        texts.append(str(part))
        current().spend(len(texts[-1]) + len(separator))
    return separator.join(texts)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    length = len(width) if isinstance(width, str) else width
    if length > _MAX_WIDTH:
        raise RenderLimitError(f"it indents by more than {_MAX_WIDTH}")
    current().spend(length * (len(s.splitlines()) + 1))
    return do_indent(s, width, first, blank)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    check_format(str(value), [args, kwargs])
    return do_format(value, *args, **kwargs)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > _MAX_WIDTH:
        raise RenderLimitError(f"it rounds to more than {_MAX_WIDTH} digits")
    return do_round(value, precision, method)


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """Numbers only: joining n lists this way takes n² steps."""
    if not isinstance(start, (int, float)):
        raise RenderLimitError("it sums up something else than numbers")
    values = iterable if attribute is None else map(make_attrgetter(environment, attribute), iterable)
    return sum(values, start)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter writes <, >, & and ' as escapes, which models have not seen in training."""
    budget = current()
    depth = 0 if indent is None else len(str(indent)) if isinstance(indent, str) else indent
    if depth > _MAX_WIDTH or sum(map(len, separators or ())) > _MAX_WIDTH:
        raise RenderLimitError(f"it writes JSON with more than {_MAX_WIDTH} characters between two parts")
    budget.spend(budget.size(value))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
