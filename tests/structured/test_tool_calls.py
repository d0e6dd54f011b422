"""Calls that are required: whatever the masks let through is read back as whole calls of the offered functions."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.structured.helpers import TREE, accepts, object_of, take_text, walk
from tokenmill.core.errors import BadRequestError, CapabilityError
from tokenmill.core.grammar import Grammar
from tokenmill.engine.structured.base import GrammarBackend
from tokenmill.text.parsers.events import ParsedMessage, collect
from tokenmill.text.parsers.registry import TOOL_PARSERS, ParserNames, build_parser
from tokenmill.text.parsers.tool_choice import calls_grammar
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_llguidance
_QUICK = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
each_format = pytest.mark.parametrize("name", TOOL_PARSERS.names())


def _tool(name: str, parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


_MODES = {"enum": ["fast", 'sl"ow', 3, None]}
TOOLS = [
    _tool("set_speed", object_of(mode=_MODES, rpm={"type": "integer", "minimum": 0, "maximum": 99})),
    _tool(
        "all.optional",
        {
            "type": "object",
            "properties": {
                "on": {"type": "boolean"},
                "limits": {"type": ["array", "null"], "items": {"enum": [1, 2]}, "maxItems": 2},
                "unit": {"const": "rpm"},
            },
        },
    ),
    _tool("stop", None),
    _tool("nested", {**object_of(tree={"$ref": "#/$defs/node"}), **{"$defs": TREE["$defs"]}}),
]
TEXT_TOOL = _tool(
    "write",
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "n": {"type": ["string", "integer"]}},
        "required": ["text"],
    },
)


_LIMIT = 3000


def _parse(name: str, text: str, tools: Any) -> ParsedMessage:
    parser = build_parser(ParserNames(name, None), tools=tools)
    return collect([*parser.feed(text), *parser.finish()])


def _check(message: ParsedMessage, tools: Any) -> None:
    assert message.content == "" and message.tool_calls
    functions = {tool["function"]["name"]: tool["function"]["parameters"] or {} for tool in tools}
    for call in message.tool_calls:
        assert call.is_complete
        arguments, schema = json.loads(call.arguments), functions[call.name]
        assert set(schema.get("required", ())) <= set(arguments) <= set(schema.get("properties", ()))
        if call.name == "set_speed":
            assert arguments["mode"] in _MODES["enum"] and 0 <= arguments["rpm"] <= 99
        elif call.name == "nested":
            assert isinstance(arguments["tree"]["value"], bool)


@each_format
@_QUICK
@given(seed=st.integers(0, 10**6))
def test_what_the_masks_let_through_is_a_list_of_calls(
    backend: GrammarBackend, tokenizer: Tokenizer, name: str, seed: int
) -> None:
    compiled = backend.compile(calls_grammar(name, TOOLS))
    ids = walk(compiled.new_matcher(), random.Random(seed), (0,), _LIMIT)
    assume(len(ids) < _LIMIT)  # a tree that grew for ever was cut
    _check(_parse(name, tokenizer.decode(ids), TOOLS), TOOLS)


@pytest.mark.requires_deepseek_tokenizer
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_with_the_real_vocabulary_tags_are_its_own_tokens(
    v4_backend: GrammarBackend, v4_tokenizer: Tokenizer, seed: int
) -> None:
    compiled = v4_backend.compile(calls_grammar("deepseek_v4", TOOLS, is_parallel=False))
    ids = walk(compiled.new_matcher(), random.Random(seed), (1,), _LIMIT)
    assume(len(ids) < _LIMIT)
    message = _parse("deepseek_v4", v4_tokenizer.decode(ids), TOOLS)
    _check(message, TOOLS)
    assert len(message.tool_calls) == 1 and ids.count(128825) >= 4


_WRITTEN = {
    "deepseek_v4": """

<｜DSML｜tool_calls>
<｜DSML｜invoke name="write">
<｜DSML｜parameter name="text" string="true">{}</｜DSML｜parameter>
<｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜tool_calls>""",
    "qwen3_coder": """<tool_call>
<function=write>
<parameter=text>
{}
</parameter>
<parameter=n>
5
</parameter>
</function>
</tool_call>""",
}


@pytest.mark.parametrize("name", _WRITTEN)
@pytest.mark.parametrize("text", ["", "plain", 'a "b" </b>\n\n</parameter', "<｜DS 😀\n"])
def test_free_text_goes_up_to_its_closing_tag(
    backend: GrammarBackend, tokenizer: Tokenizer, name: str, text: str
) -> None:
    compiled = backend.compile(calls_grammar(name, [TEXT_TOOL]))
    written = _WRITTEN[name].replace("{}", text)
    assert accepts(compiled.new_matcher(), tokenizer, written)
    (call,) = _parse(name, written, [TEXT_TOOL]).tool_calls
    assert json.loads(call.arguments) == {"text": text, "n": 5}


@pytest.mark.requires_deepseek_tokenizer
def test_free_text_of_the_real_vocabulary_ends_at_its_tag(v4_backend: GrammarBackend, v4_tokenizer: Tokenizer) -> None:
    compiled = v4_backend.compile(calls_grammar("deepseek_v4", [TEXT_TOOL]))
    matcher = compiled.new_matcher()
    written = _WRITTEN["deepseek_v4"].replace("{}", "a </b> <｜DS\n")
    assert accepts(matcher, v4_tokenizer, written)
    assert not take_text(compiled.new_matcher(), v4_tokenizer, written.replace(">5<", '>"5<'))


@each_format
def test_one_call_by_name(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    compiled = backend.compile(calls_grammar(name, TOOLS, name="stop"))
    for seed in range(3):
        ids = walk(compiled.new_matcher(), random.Random(seed), (0,), 500)
        assert [call.name for call in _parse(name, tokenizer.decode(ids), TOOLS).tool_calls] == ["stop"]


def test_a_function_without_arguments_is_written_as_the_format_does(
    backend: GrammarBackend, tokenizer: Tokenizer
) -> None:
    compiled = backend.compile(calls_grammar("deepseek_v4", TOOLS, name="stop"))
    opening = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="stop">\n\n</｜DSML｜invoke>'
    assert take_text(compiled.new_matcher(), tokenizer, opening)
    optional = backend.compile(calls_grammar("deepseek_v4", TOOLS, name="all.optional"))
    assert take_text(optional.new_matcher(), tokenizer, opening.replace("stop", "all.optional"))


def test_grammars_start_behind_thinking() -> None:
    assert calls_grammar("hermes", TOOLS, start_after=(7,)).start_after == (7,)


@pytest.mark.parametrize(
    ("tool", "name", "param"),
    [
        (_tool("no good!", {}), "hermes", "tools[1].function.name"),
        (_tool("f", object_of(**{"a>b": {}})), "deepseek_v4", "tools[1].function.parameters.properties.a>b"),
        (_tool("f", object_of(**{"a b": {}})), "pythonic", "tools[1].function.parameters.properties.a b"),
        (_tool("f", object_of(a={"type": "x"})), "hermes", "tools[1].function.parameters.properties.a.type"),
        (
            _tool("f", object_of(a={"type": "array", "uniqueItems": True})),
            "hermes",
            "tools[1].function.parameters.properties.a.uniqueItems",
        ),
        (_tool("f", {"anyOf": [{"type": "object"}]}), "qwen3_coder", "tools[1].function.parameters"),
        (
            _tool("f", {"type": "object", "required": ["a"], "properties": {"b": {}}}),
            "deepseek_v4",
            "tools[1].function.parameters.required[0]",
        ),
        (
            _tool("f", object_of(a={"type": "string", "pattern": "x"}), strict=True),
            "deepseek_v4",
            "tools[1].function.parameters.properties.a.pattern",
        ),
    ],
)
def test_tools_that_cannot_be_enforced_are_refused(backend: GrammarBackend, tool: Any, name: str, param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        backend.compile(calls_grammar(name, [TOOLS[2], tool]))
    assert caught.value.param == param


def test_choices_that_make_no_sense_are_refused(backend: GrammarBackend) -> None:
    with pytest.raises(BadRequestError, match="possible are set_speed") as caught:
        calls_grammar("hermes", TOOLS, name="fly")
    assert caught.value.param == "tool_choice"
    with pytest.raises(CapabilityError):
        calls_grammar(None, TOOLS)
    grammar: Grammar = calls_grammar("unheard of", TOOLS)
    with pytest.raises(CapabilityError, match="tool_choice auto"):
        backend.compile(grammar)


@pytest.mark.parametrize("name", [name for name in TOOL_PARSERS.names() if name != "pythonic"])
def test_a_parameter_may_be_anything(backend: GrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    """Not in Python's spelling, which has no numbers beyond its own."""
    tool = _tool("f", {"type": "object", "properties": {"a": True}})
    compiled = backend.compile(calls_grammar(name, [tool], is_parallel=False))
    num_ended = 0
    for seed in range(8):
        matcher = compiled.new_matcher()
        ids = walk(matcher, random.Random(seed), (0,), 400)
        if matcher.is_finished:  # some values have no end
            num_ended += 1
            message = _parse(name, tokenizer.decode(ids), [tool])
            assert [(call.name, call.is_complete) for call in message.tool_calls] == [("f", True)]
            assert message.content == ""
    assert num_ended >= 2


def test_a_loose_function_may_limit_its_texts(backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    tool = _tool("write", object_of(text={"type": "string", "maxLength": 1}, n={"type": "integer"}))
    compiled = backend.compile(calls_grammar("deepseek_v4", [tool]))
    assert accepts(compiled.new_matcher(), tokenizer, _WRITTEN["deepseek_v4"].replace("{}", "longer"))
