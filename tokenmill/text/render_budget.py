"""How much one rendering of a chat template may do, and the checks before operations that could make much of little.

A template comes with a model from anywhere. Units: a character, an element of a list, a fraction of a step. What is
counted is what is *made*, so that neither one huge value nor many large ones can fill the memory. Not responsible
for where the checks are called (sandbox.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

#: What a template may make of nothing, and what more per unit of the conversation that it is given.
BASE_UNITS = 32 * 2**20
UNITS_PER_INPUT_UNIT = 32
#: Written out, a value may have this many characters and elements, and the conversation's size four times over.
#: Parts that are shared count each time they appear.
BASE_VALUE_SIZE = 8 * 2**20
MAX_SECONDS = 5.0
_STEP_UNITS = 16
_ELEMENT_UNITS = 8
_MAX_INT_BITS = 4096
#: A width or precision of four digits or more, or one taken from an argument
_WIDE_FORMAT = re.compile(r"\d{4,}|\*|\{[^{}]*\{")

_CONTAINERS = (list, tuple, set, frozenset, Mapping, KeysView, ValuesView, ItemsView)


class RenderLimitError(Exception):
    """The template wants to do more than a chat template has reason to."""


class RenderBudget:
    """One rendering's allowance; used by one thread."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._units = BASE_UNITS
        self._max_value_size = BASE_VALUE_SIZE
        self._deadline_s = time.monotonic() + max_seconds
        # id -> (value, size): the value is kept so that its id stays its own. Sandboxed values never change.
        self._sizes: dict[int, tuple[Any, int]] = {}

    @property
    def units_left(self) -> int:
        return self._units

    def grant(self, conversation: Any) -> None:
        """Allow as much more as this input is large."""
        size = self.size(conversation)
        self._units += UNITS_PER_INPUT_UNIT * size
        self._max_value_size += 4 * size

    def spend(self, units: int) -> None:
        self._units -= units
        if self._units < 0:
            raise RenderLimitError("it makes too much text")

    def step(self) -> None:
        """Called at every loop pass, call, filter and comparison."""
        self.spend(_STEP_UNITS)
        if time.monotonic() > self._deadline_s:
            raise RenderLimitError("it takes too long")

    def made(self, value: Any) -> Any:
        """Pay for a new value and return it."""
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, _CONTAINERS):
            self.spend(_ELEMENT_UNITS * len(value))
        else:
            _check_bits(_bits(value))
            return value
        if self.size(value) > self._max_value_size:
            raise RenderLimitError("it makes too large a value")
        return value

    def size(self, value: Any) -> int:
        """Characters and elements of `value` written out. Values that share parts can be exponentially large."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            known = (value, 1 + sum(map(self.size, _parts(value))))
            self._sizes[id(value)] = known
        return known[1]


def _parts(value: Any) -> Iterable[Any]:
    return [part for pair in value.items() for part in pair] if isinstance(value, Mapping) else value


_CURRENT: ContextVar[RenderBudget] = ContextVar("render_budget")


def current() -> RenderBudget:
    """The budget of the rendering that runs in this thread."""
    return _CURRENT.get()


@contextmanager
def spending(budget: RenderBudget) -> Iterator[RenderBudget]:
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right` is computed."""
    if operator == "%" and isinstance(left, str):
        check_format(left, right)
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                current().spend(_ELEMENT_UNITS * len(value) * max(times, 0))
        _check_bits(_bits(left) + _bits(right))
    elif operator == "**":
        _check_bits(_bits(left) * (right if isinstance(right, int) else 1))


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_bits(num_bits: int) -> None:
    if num_bits > _MAX_INT_BITS:
        raise RenderLimitError("it computes too large a number")


def check_format(text: str, values: Any) -> None:
    """Before `values` are put into the places of a format string: neither wide places nor many places for a value."""
    if _WIDE_FORMAT.search(text.replace("{{", "").replace("%%", "")):
        raise RenderLimitError("it formats with too large a width")
    current().spend((text.count("%") + text.count("{") + 1) * current().size(values))
