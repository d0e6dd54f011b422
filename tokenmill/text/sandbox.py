"""The Jinja environment for chat templates: what transformers' templates expect, bounded in time and memory.

Jinja's own sandbox keeps a template away from Python, but not from `{{ 'x' * 10**10 }}` or nested loops. Here the
parsed template is rewritten so that loops, literals, slices, `~` and comparisons pass a check; operators, calls and
filters are wrapped; filters and string methods without a known bound are gone. Not responsible for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from tokenmill.text.render_budget import RenderBudget, RenderLimitError, check_format, check_operator, current, spending
from tokenmill.text.template_filters import STR_METHODS, bounded_filters, paying, str_method

MAX_TEMPLATE_CHARS = 256 * 2**10
_COMPARING_TESTS = [
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "eq",
    "equalto",
    "ne",
    "lt",
    "lessthan",
    "le",
    "gt",
    "greaterthan",
]
_COMPARING_TESTS += ["ge", "in"]
_MAX_TIME_FORMAT = 256


class TemplateRefusal(TemplateError):
    """The template called raise_exception: these messages are not what its model is made for."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Use it through compile_template and render, which set the budget. `now` gives the time to strftime_now."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_written,
            extensions=[loopcontrols, Generation],
        )
        self.concat = _concat  # type: ignore[method-assign]  # compiled templates join blocks and macros with it
        own = {"_made": _made, "_each": _each, "_text": _text, "_compared": _compared}
        self.filters = bounded_filters() | own
        tests: dict[str, Any] = self.tests
        self.tests = tests | {name: paying(tests[name]) for name in _COMPARING_TESTS}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda format: now().strftime(format[:_MAX_TIME_FORMAT]),
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": lambda *args, **kwargs: _OpaqueNamespace(*args, **kwargs),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        current().step()
        check_operator(operator, left, right)
        return current().made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        current().step()
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name in STR_METHODS:
            __obj = str_method(owner, name, __obj)
        return current().made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        if value.__name__ not in STR_METHODS:
            raise SecurityError(f"{value.__name__} is not available")

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, [args, kwargs])
            return wrapped(*args, **kwargs)

        return bounded

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in STR_METHODS
        return not isinstance(obj, (int, float, bytes, type)) and super().is_safe_attribute(obj, attr, value)


def compile_template(environment: Environment, source: str) -> Template:
    """TemplateError (it knows the line) or RenderLimitError when `source` cannot be compiled."""
    if len(source) > MAX_TEMPLATE_CHARS:
        raise RenderLimitError(f"it has {len(source)} characters, more than {MAX_TEMPLATE_CHARS}")
    with spending(RenderBudget()):  # constant expressions are evaluated while compiling
        try:
            return environment.from_string(source)
        except (RecursionError, MemoryError, SyntaxError):
            raise RenderLimitError("it is nested too deeply") from None


def render(template: Template, variables: dict[str, Any], budget: RenderBudget | None = None) -> str:
    """The text; errors: jinja2's, RenderLimitError, and whatever the template's expressions raise."""
    with spending(budget or RenderBudget()) as budget:
        pieces = []
        try:
            budget.grant(variables)
            for piece in template.root_render_func(template.new_context(variables)):
                budget.step()
                pieces.append(budget.made(piece))
        except (RecursionError, MemoryError):
            raise RenderLimitError("it is nested too deeply") from None
        return "".join(pieces)


class Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; to us it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Instrument(NodeTransformer):
    """Sends what Jinja compiles to plain Python through the functions below, which are filters for this purpose."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("_each", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("_text", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through("_compared", node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _through("_made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        is_target = getattr(node, "ctx", "load") != "load"
        is_constant = all(isinstance(part, nodes.Const) for part in node.items)
        return node if is_target or is_constant else _through("_made", node)

    visit_Tuple = visit_Dict = visit_List


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _made(value: Any) -> Any:
    return current().made(value)


def _each(values: Iterable[Any]) -> Iterator[Any]:
    budget = current()
    for value in values:
        budget.step()
        yield value


def _compared(value: Any) -> Any:
    current().step()
    return value


def _text(parts: list[Any]) -> str:
    current().step()
    return _concat(map(str, parts))


def _concat(parts: Iterable[str]) -> str:
    budget, texts = current(), []
    for part in parts:
        budget.spend(len(part))
        texts.append(part)
    return "".join(texts)


def _written(value: Any) -> Any:
    """What `{{ value }}` prints; a block may collect many before it joins them, so each is paid for here."""
    return value if isinstance(value, str) else current().made(str(value))


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusal(str(message))


class _OpaqueNamespace(Namespace):
    """Printing it shows nothing of its attributes: namespaces that hold each other would print without end.

    Names with an underscore in front are Python's own, and stay out of reach here as everywhere in the sandbox.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in Jinja, so that an attribute may be called `self`
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: names may not start with an underscore")
