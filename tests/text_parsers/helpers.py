"""Feeding a parser a text in pieces, and outputs of every format drawn at random. Not tests themselves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tokenmill.text.parsers.base import OutputParser
from tokenmill.text.parsers.events import ParsedCall, ParsedMessage, collect
from tokenmill.text.parsers.registry import ParserNames, build_parser

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "path": {"type": ["string"]},
                    "count": {"type": "integer"},
                    "items": {"type": "array"},
                    "extra": {"type": "object"},
                },
            },
        },
    }
    for name in ("write_file", "get_weather", "ns.search")
]


def counting_ids() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def parser(tools: str | None, reasoning: str | None = None, *, inside: bool = False) -> OutputParser:
    return build_parser(ParserNames(tools, reasoning), tools=TOOLS, starts_in_reasoning=inside, make_id=counting_ids())


def parse(make: Callable[[], OutputParser], pieces: Sequence[str]) -> ParsedMessage:
    """The message of a text that comes in these pieces; every delta holds something."""
    target = make()
    events = [event for piece in pieces for event in target.feed(piece)] + target.finish()
    assert all(getattr(event, "text", "x") for event in events), "an empty delta"
    return collect(events)


def cut(text: str, places: Sequence[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def pieces_of(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def call(name: str, arguments: dict[str, object], index: int = 0, *, is_complete: bool = True) -> ParsedCall:
    return ParsedCall(f"call_{index}", name, json.dumps(arguments, ensure_ascii=False), is_complete)


@dataclass(frozen=True)
class Output:
    """A well-formed output and the message it stands for."""

    text: str
    message: ParsedMessage


#: Text that looks like markup without being any, beside ordinary text.
_BITS = [
    "<",
    "</",
    "<think",
    "<tool_cal",
    "<｜DSML",
    "\n",
    "\n\n",
    " ",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    "é",
    "名",
    "😀",
    "a",
    "b c",
]
words = st.lists(st.sampled_from(_BITS) | st.text("xyz<>｜/\n", max_size=3), max_size=6).map("".join)
_names = st.sampled_from(["write_file", "get_weather", "ns.search"])
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "ü", "a b"]), inner, max_size=2),
    max_leaves=4,
)
_arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": words,
        "path": words,
        "count": st.integers(-100, 100),
        "items": st.lists(_json, max_size=3),
        "extra": st.dictionaries(st.sampled_from(["k", "q"]), _json, max_size=2),
    },
)
_calls = st.lists(st.tuples(_names, _arguments), min_size=1, max_size=3)


def dsml_call(name: str, arguments: dict[str, object], tag: str = "｜DSML｜") -> str:
    lines = [f'<{tag}invoke name="{name}">']
    for key, value in arguments.items():
        is_text = isinstance(value, str)
        shown = value if is_text else json.dumps(value, ensure_ascii=False)
        lines.append(f'<{tag}parameter name="{key}" string="{str(is_text).lower()}">{shown}</{tag}parameter>')
    return "\n".join([*lines, f"</{tag}invoke>"])


def dsml_block(calls: Sequence[tuple[str, dict[str, object]]]) -> str:
    return "\n".join(["<｜DSML｜tool_calls>", *(dsml_call(*one) for one in calls), "</｜DSML｜tool_calls>"])


def _message(reasoning: str, content: str, calls: Sequence[tuple[str, dict[str, object]]]) -> ParsedMessage:
    return ParsedMessage(reasoning, content, tuple(call(name, args, i) for i, (name, args) in enumerate(calls)))


@st.composite
def deepseek_outputs(draw: st.DrawFn) -> Output:
    reasoning, content, calls = draw(words), draw(words).rstrip("\n"), draw(_calls | st.just([]))
    text = f"{reasoning}</think>{content}" + (f"\n\n{dsml_block(calls)}" if calls else "")
    return Output(text, _message(reasoning.removeprefix("<think>"), content, calls))


@st.composite
def hermes_outputs(draw: st.DrawFn) -> Output:
    content, calls = draw(words).rstrip("\n"), draw(_calls)
    blocks = []
    for name, arguments in calls:
        body = {"name": name, "arguments": arguments}
        if draw(st.booleans()):
            body = {"arguments": arguments, "name": name}
        blocks.append(f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>")
    return Output(f"{content}\n" + "\n".join(blocks), _message("", content, calls))


@st.composite
def qwen3_coder_outputs(draw: st.DrawFn) -> Output:
    content, calls = draw(words).rstrip("\n"), draw(_calls)
    blocks = []
    for name, arguments in calls:
        shown = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in shown.items())
        blocks.append(f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>")
    return Output(f"{content}\n" + "\n".join(blocks), _message("", content, calls))


@st.composite
def llama_outputs(draw: st.DrawFn) -> Output:
    calls = draw(_calls)
    bodies = [json.dumps({"name": name, "parameters": args}, ensure_ascii=False) for name, args in calls]
    lead = draw(st.sampled_from(["", "<|python_tag|>", " \n"]))
    return Output(lead + draw(st.sampled_from(["; ", "\n", ";"])).join(bodies), _message("", "", calls))


@st.composite
def pythonic_outputs(draw: st.DrawFn) -> Output:
    calls = draw(_calls)
    shown = [f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})" for name, args in calls]
    lead, end = draw(st.sampled_from([("", ""), ("<|python_start|>", "<|python_end|>"), ("\n", "\n")]))
    return Output(f"{lead}[{', '.join(shown)}]{end}", _message("", "", calls))


@dataclass(frozen=True)
class Format:
    name: str
    make: Callable[[], OutputParser]
    outputs: st.SearchStrategy[Output]
    #: Pieces that its outputs are made of, for texts that are nearly markup.
    markup: tuple[str, ...]


FORMATS = [
    Format(
        "deepseek_v4",
        lambda: parser("deepseek_v4", "deepseek_v4", inside=True),
        deepseek_outputs(),
        (
            "<｜DSML｜tool_calls>",
            "</｜DSML｜tool_calls>",
            '<｜DSML｜invoke name="get_weather">',
            "<｜DSML｜invoke>",
            "</｜DSML｜invoke>",
            '<｜DSML｜parameter name="text" string="true">',
            '<｜DSML｜parameter name="count" string="false">',
            '<｜DSML｜parameter name="path">',
            "<｜DSML｜parameter nam",
            "</｜DSML｜parameter>",
            "</think>",
            "<think>",
            "5",
        ),
    ),
    Format(
        "hermes",
        lambda: parser("hermes"),
        hermes_outputs(),
        (
            "<tool_call>",
            "</tool_call>",
            '{"name": "f", ',
            '"arguments": {"a": ',
            "1e5",
            "tru",
            "}",
            "}}",
            '"x\\u00',
            "\\n",
        ),
    ),
    Format(
        "qwen3_coder",
        lambda: parser("qwen3_coder"),
        qwen3_coder_outputs(),
        (
            "<tool_call>",
            "</tool_call>",
            "<function=get_weather>",
            "</function>",
            "<parameter=text>",
            "<parameter=count>",
            "<parameter=what>",
            "</parameter>",
            "<function",
            "7",
        ),
    ),
    Format(
        "llama3_json",
        lambda: parser("llama3_json"),
        llama_outputs(),
        ("<|python_tag|>", '{"name": "f", ', '"parameters": {"a": ', '{"', "answer", "3", "}", "}}", ";", '"type": 1,'),
    ),
    Format(
        "pythonic",
        lambda: parser("pythonic"),
        pythonic_outputs(),
        ("<|python_start|>", "[", "f(", "a=", "1", "'", ")", ",", "]", "\\", "-", "true", "{", "g(b=[1, 2])"),
    ),
]
FORMATS_BY_NAME = {format.name: format for format in FORMATS}
