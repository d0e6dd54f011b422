"""A hostile template may not hold the server up for long, nor fill its memory."""

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import SecurityError

from tokenmill.text.render_budget import BASE_UNITS, RenderBudget, RenderLimitError
from tokenmill.text.sandbox import BoundedEnvironment, compile_template, render

DOUBLING = "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60
HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loop output": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "loop into a block": "{% set y %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}{% endset %}",
    "recursive macro": "{% macro m(n) %}{{ m(n - 1) }}{{ m(n - 1) }}{% endmacro %}{{ m(9) }}",
    "branching macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "text times number": "{{ 'x' * 10000000000 }}",
    "number times text": "{{ 10000000000 * 'x' }}",
    "list times number": "{% set x = [1] * 10000000000 %}",
    "text doubled by +": "{% set x = 'xxxxxxxxxxxxxxxx' %}" + "{% set x = x + x %}" * 60,
    "text doubled by ~": "{% set x = 'xxxxxxxxxxxxxxxx' %}" + "{% set x = x ~ x %}" * 60,
    "text doubled in a block": "{% set x = 'xxxxxxxxxxxxxxxx' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "text doubled by a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set x = 'xxxxxxxx' %}"
    + "{% set x = m(x) %}" * 60,
    "list doubled": "{% set x = [1] %}" + "{% set x = x + x %}" * 60,
    "shared lists printed": DOUBLING + "{{ x }}",
    "shared lists as JSON": DOUBLING + "{{ x | tojson }}",
    "shared lists compared": DOUBLING + DOUBLING.replace("x", "y") + "{{ x == y }}",
    "shared tuples": DOUBLING.replace("[", "(").replace("]", ",)") + "{{ {x: 1} }}",
    "shared objects": DOUBLING.replace("[x, x]", "{'a': x, 'b': x}") + "{{ x }}",
    "shared objects by dict()": DOUBLING.replace("[x, x]", "dict(a=x, b=x)") + "{{ x }}",
    "shared views": DOUBLING.replace("[x, x]", "[x, {'a': x}.items()]") + "{{ x }}",
    "power": "{{ 9 ** 999999999 }}",
    "power tower in a variable": "{% set x = 9 ** 99 %}{% set x = x ** 99 %}{{ x ** 99 }}",
    "number doubled by *": "{% set x = 99999999 %}" + "{% set x = x * x %}" * 60,
    "wide %": "{{ '%1000000000d' % 1 }}",
    "wide % by argument": "{{ '%*d' % (1000000000, 1) }}",
    "wide format": "{{ '{:1000000000d}'.format(1) }}",
    "wide format by argument": "{{ '{:{}d}'.format(1, 1000000000) }}",
    "wide format filter": "{{ '%1000000000d' | format(1) }}",
    "wide format kept": "{% set f = '{:1000000000d}'.format %}{{ f(1) }}",
    "replace grows": "{% set x = 'x' * 100000 %}{{ x.replace('x', x) }}",
    "replace filter grows": "{% set x = 'x' * 100000 %}{{ x | replace('x', x) }}",
    "replace of nothing grows": "{% set x = 'x' * 100000 %}{{ x.replace('', x) }}",
    "join grows": "{% set x = 'x' * 100000 %}{{ x.join(x) }}",
    "join filter grows": "{% set x = 'x' * 100000 %}{{ range(99999) | join(x) }}",
    "indent": "{{ 'x' | indent(1000000000, first=true) }}",
    "indent by text": "{% set x = 'x' * 100000 %}{{ ('\\n' * 100000) | indent(x, blank=true) }}",
    "JSON indent": "{{ [[1], [2]] | tojson(indent=1000000000) }}",
    "JSON separators": "{% set x = 'x' * 100000 %}{{ range(9999) | list | tojson(separators=(x, x)) }}",
    "sum of lists": "{{ range(99999) | map('list') | sum(start=[]) }}",
    "sum of lists at once": "{{ [[1]] | sum(start=[]) }}",
    "slices": "{% set x = 'x' * 1000000 %}" + "{% set x = x[:] + 'x' %}" * 2000,
    "many long lists": "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "repeated filters": "{% set x = 'x' * 4000000 %}" + "{% set y = x" + " | upper" * 2000 + " %}",
    "namespaces that hold each other": "{% set a = namespace() %}{% set a.x = [a, a] %}{{ a }}{{ [a] * 99999999 }}",
    "many places for one value": "{% set x = 'x' * 1000000 %}{{ '" + "%(a)s" * 9000 + "' % {'a': x} }}",
    "many places by format": "{% set x = 'x' * 1000000 %}{{ '" + "{0}" * 9000 + "'.format(x) }}",
    "many places by filter": "{% set x = 'x' * 1000000 %}{{ '" + "%(a)s" * 9000 + "' | format(a=x) }}",
    "lists in a block": "{% set x = [1] * 99999 %}{% set y %}" + "{{ x }}" * 9000 + "{% endset %}",
    "lists by ~": "{% set x = [1] * 99999 %}{% set y = ''" + " ~ x" * 900 + " %}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "long number read": "{% set x = ('f' * 1000000) | int(base=16) %}{{ (x // (x - 3)) }}",
    "range": "{{ range(1000000000) | list }}",
    "loop over itself": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
}
FORBIDDEN = [
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ '{a}'.format_map({'a': 1}) }}",
    "{{ 'x'.encode() }}",
    "{{ ('{' ~ 'a}').format_map }}",
    "{{ lipsum(1000000000) }}",
]


def run(template: str, budget: RenderBudget | None = None, **variables: Any) -> str:
    return render(compile_template(BoundedEnvironment(datetime.now), template), variables, budget)


#: Runs every hostile template in a process of its own, so that its memory can be told from that of other tests. The
#: allowance is an eighth of the real one, to save time: cost and memory are proportional to it.
MEASURE = """
import json, time
from pathlib import Path
from tests.text.test_template_sandbox import HOSTILE, RenderLimitError, run
from tokenmill.text import render_budget
render_budget.BASE_UNITS //= 8
results = {}
for name, template in HOSTILE.items():
    start = time.process_time()
    try:
        outcome = f"rendered {len(run(template))} characters"
    except RenderLimitError as error:
        outcome = "stopped"
    except Exception as error:
        outcome = type(error).__name__
    results[name] = (outcome, time.process_time() - start)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([results, int(status["VmHWM"].split()[0]) * 1024]))  # ru_maxrss would count the parent's memory
"""


@pytest.fixture(scope="module")
def measured() -> Any:
    """[{name: (outcome, CPU seconds)}, peak memory in bytes]"""
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=58)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped_soon(measured: Any, name: str) -> None:
    outcome, cpu_s = measured[0][name]
    assert outcome in ("stopped", "OverflowError")
    assert cpu_s < 8


def test_hostile_templates_stay_small(measured: Any) -> None:
    assert measured[1] < 500e6


@pytest.mark.parametrize("template", FORBIDDEN)
def test_methods_without_a_bound_are_gone(template: str) -> None:
    with pytest.raises((SecurityError, TemplateError)):
        run(template)


@pytest.mark.parametrize("name", ["center", "wordwrap", "urlize", "pprint", "striptags", "xmlattr", "attr", "batch"])
def test_filters_without_a_bound_are_gone(name: str) -> None:
    with pytest.raises(TemplateError, match=name):
        compile_template(BoundedEnvironment(datetime.now), "{{ 'x' | " + name + " }}")


def test_constant_expressions_are_bounded_while_compiling() -> None:
    start = time.process_time()
    with pytest.raises((RenderLimitError, OverflowError)):
        run("{{ ('x' * 1000000000) | upper }}{{ 'x' | indent(1000000000, true) }}")
    assert time.process_time() - start < 5


def test_the_deadline_holds_where_little_is_made() -> None:
    budget = RenderBudget(max_seconds=0.0)
    with pytest.raises(RenderLimitError, match="takes too long"):
        run("{% for a in range(10) %}{% endfor %}", budget)


def test_a_long_conversation_is_far_from_the_limits() -> None:
    """Two megabytes, short or long messages, written by a template that looks at each several times."""
    template = (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' and m.content is string %}"
        "{% set ns.n = ns.n + 1 %}{{ '<' ~ m.role ~ '>' + m.content | trim + '\\n' }}{% endif %}{% endfor %}{{ ns.n }}"
    )
    for length in (100, 100_000):
        messages = [{"role": "user", "content": "x" * length} for _ in range(2_000_000 // length)]
        budget = RenderBudget(max_seconds=60)
        assert run(template, budget, messages=messages).endswith(f">{messages[-1]['content']}\n{len(messages)}")
        assert budget.units_left > BASE_UNITS


def test_sizes_count_shared_parts_each_time() -> None:
    budget = RenderBudget()
    inner = ["ab", {"k": 1}]
    assert budget.size(inner) == 1 + 2 + (1 + 1 + 1)
    assert budget.size([inner, inner]) == 1 + 2 * budget.size(inner)
    assert budget.size({"k": 1}.items()) == 1 + (1 + 1 + 1)
    assert budget.size(None) == 1
