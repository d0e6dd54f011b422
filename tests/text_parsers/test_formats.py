"""Each format by example: what is a call, what is content, what is neither."""

from __future__ import annotations

import json

import pytest

from tests.text_parsers.helpers import FORMATS_BY_NAME, TOOLS, counting_ids, dsml_block, parse, parser, pieces_of
from tokenmill.text.parsers.base import OutputParser
from tokenmill.text.parsers.calls import HELD_CHARS, new_call_id
from tokenmill.text.parsers.events import ParsedMessage, ToolCallArgumentsDelta, ToolCallEnd, ToolCallStart

_OPEN, _CLOSE = "<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"


def _every_cut(name: str, text: str) -> ParsedMessage:
    """The message of `text`, checked to be the same for pieces of 1, 2, 5 characters and the whole."""
    make = FORMATS_BY_NAME[name].make
    whole = parse(make, [text])
    assert all(parse(make, pieces_of(text, size)) == whole for size in (1, 2, 5))
    return whole


def _dsml(body: str) -> ParsedMessage:
    return _every_cut("deepseek_v4", f"why</think>so\n\n{body}")


def _calls(message: ParsedMessage) -> list[tuple[str, str, bool]]:
    return [(call.name, call.arguments, call.is_complete) for call in message.tool_calls]


# -- DeepSeek V4 --


def test_dsml_values_are_text_or_json_as_the_tag_says() -> None:
    """S45: types survive: `string="true"` is text even where it looks like a number, "false" is the JSON itself."""
    text = (
        '<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="c" string="false">{"x":[1,  2]}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="d" string="true">say "hi"\n</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>"
    )
    message = _dsml(_OPEN + text + _CLOSE)
    assert _calls(message) == [("f", '{"a": "5", "b": 5, "c": {"x":[1,  2]}, "d": "say \\"hi\\"\\n"}', True)]
    assert (message.reasoning, message.content) == ("why", "so")


@pytest.mark.parametrize("value", ["maybe", "NaN", "{", ""])
def test_dsml_value_that_is_no_json_stays_text(value: str) -> None:
    tag = '<｜DSML｜parameter name="a" string="false">'
    text = f'<｜DSML｜invoke name="f">\n{tag}{value}</｜DSML｜parameter>\n</｜DSML｜invoke>'
    assert _calls(_dsml(_OPEN + text + _CLOSE)) == [("f", json.dumps({"a": value}), True)]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("text", "5", '"5"'), ("count", "5", "5"), ("unknown", "5", "5"), ("unknown", "x", '"x"')],
)
def test_dsml_value_without_its_word_follows_the_schema_of_the_tool(name: str, value: str, expected: str) -> None:
    tag = f'<｜DSML｜parameter name="{name}">'
    text = f'<｜DSML｜invoke name="get_weather">\n{tag}{value}</｜DSML｜parameter>\n</｜DSML｜invoke>'
    assert _calls(_dsml(_OPEN + text + _CLOSE)) == [("get_weather", f'{{"{name}": {expected}}}', True)]


@pytest.mark.parametrize(
    "block",
    [
        f"{_OPEN}{_CLOSE}",
        f"{_OPEN}nothing of the kind{_CLOSE}",
        f'{_OPEN}<｜DSML｜invoke nam="f">\n</｜DSML｜invoke>{_CLOSE}',
        f'{_OPEN}<｜DSML｜invoke name="f">\nstray\n</｜DSML｜invoke>{_CLOSE} and on',
        f'{_OPEN}<｜DSML｜invoke name="f"><｜DSML｜parameter nam="a">x</｜DSML｜parameter></｜DSML｜invoke>{_CLOSE}',
        f'{_OPEN}<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">x\n</｜DSML｜invoke>{_CLOSE}',
        f'{_OPEN}<｜DSML｜invoke name="{"f" * 600}">{_CLOSE}',
    ],
)
def test_malformed_dsml_is_content_verbatim_and_once(block: str) -> None:
    """S47: never half, never twice."""
    message = _dsml(block)
    assert message == ParsedMessage("why", f"so\n\n{block}")


def test_well_formed_calls_beside_a_malformed_one_still_count() -> None:
    """S47: the malformed one and what follows it in the block is content."""
    good = '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>'
    bad = "\n<｜DSML｜invoke>\n</｜DSML｜invoke>"
    message = _dsml(_OPEN + good + bad + _CLOSE)
    assert _calls(message) == [("f", "{}", True)]
    assert message.content == "so" + bad + _CLOSE


def test_dsml_block_and_invoke_may_lack_their_closing_tags() -> None:
    opened = f'{_OPEN}<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>'
    assert _calls(_dsml(opened + _CLOSE)) == [("f", '{"a": "x"}', True)]
    assert _calls(_dsml(opened + "\n</｜DSML｜invoke>")) == [("f", '{"a": "x"}', True)]
    after = _dsml(opened + "\n</｜DSML｜invoke>\nDone.")
    assert (_calls(after), after.content) == ([("f", '{"a": "x"}', True)], "so\nDone.")


def test_text_and_a_second_block_after_a_block() -> None:
    block = dsml_block([("f", {"a": 1})])
    message = _dsml(f"{block}\nthen\n\n{block}")
    assert _calls(message) == [("f", '{"a": 1}', True)] * 2
    assert message.content == "so\nthen"


def test_v32_block_name_is_read_too() -> None:
    text = dsml_block([("f", {})]).replace("tool_calls", "function_calls")
    assert _calls(_dsml(text)) == [("f", "{}", True)]


@pytest.mark.parametrize(
    "cut_at", ["<｜DSML｜", "<｜DSML｜tool_ca", _OPEN, _OPEN + "<｜DSML｜inv", _OPEN + '<｜DSML｜invoke name="f']
)
def test_call_cut_off_before_its_name_leaves_no_markup(cut_at: str) -> None:
    """S48: neither half a tag nor a nameless call reaches the client."""
    assert _dsml(cut_at) == ParsedMessage("why", "so")


@pytest.mark.parametrize(
    ("tail", "arguments"),
    [
        ("", ""),
        ('<｜DSML｜parameter name="a" string="true">', '{"a": "'),
        ('<｜DSML｜parameter name="a" string="true">x y</｜DS', '{"a": "x y'),
        ('<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>\n', '{"a": "x"'),
        ('<｜DSML｜parameter name="a" string="false">[1, 2', ""),
    ],
)
def test_call_cut_off_has_the_beginning_of_its_arguments_and_no_end(tail: str, arguments: str) -> None:
    """S48: the visible content is that of the finished answer."""
    message = _dsml(f'{_OPEN}<｜DSML｜invoke name="f">\n{tail}')
    assert _calls(message) == [("f", arguments, False)]
    assert message.content == "so"


def test_long_arguments_stream_before_the_call_ends() -> None:
    target = parser("deepseek_v4", "deepseek_v4")
    opening = f'{_OPEN}<｜DSML｜invoke name="write_file">\n<｜DSML｜parameter name="text" string="true">'
    events = target.feed(opening + "a" * HELD_CHARS)
    assert [type(event) for event in events] == [ToolCallStart, ToolCallArgumentsDelta]
    assert target.feed("b\n") == [ToolCallArgumentsDelta(0, "b\\n")]
    rest = target.feed("</｜DSML｜parameter>\n</｜DSML｜invoke>")
    assert rest == [ToolCallArgumentsDelta(0, '"}'), ToolCallEnd(0)]


@pytest.mark.parametrize("name", ["deepseek_v4", "qwen3_coder", "hermes", "llama3_json"])
def test_long_call_that_turns_out_malformed_never_ends(name: str) -> None:
    """Its beginning is out, so the rest follows after its arguments; nothing of it is content, and nobody runs it."""
    text = "x" * 2 * HELD_CHARS
    source = {
        "deepseek_v4": f'</think>{_OPEN}<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">{text}'
        f"</｜DSML｜parameter>\nstray</｜DSML｜invoke>{_CLOSE}",
        "qwen3_coder": f"<tool_call>\n<function=write_file>\n<parameter=text>{text}</parameter>"
        "stray</function></tool_call>",
        "hermes": f'<tool_call>{{"name": "f", "arguments": {{"a": "{text}" stray}}}}</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {{"a": "{text}" stray}}}}',
    }[name]
    message = _every_cut(name, source)
    (call,) = message.tool_calls
    assert message.content == ""
    assert not call.is_complete and "stray" in call.arguments and text in call.arguments
    with pytest.raises(ValueError):
        json.loads(call.arguments)
    cut_off = _every_cut(name, source[: source.index("stray") + 3])
    assert cut_off.content == "" and not cut_off.tool_calls[0].is_complete


# -- reasoning --


@pytest.mark.parametrize("reasoning", ["deepseek_v4", "think"])
def test_output_that_begins_inside_the_reasoning(reasoning: str) -> None:
    """S55: the prompt holds the opening tag, the output only the closing one."""
    make = lambda: parser(None, reasoning, inside=True)  # noqa: E731
    for text in ("hm</think>yes", "<think>hm</think>yes"):
        assert all(parse(make, pieces_of(text, size)) == ParsedMessage("hm", "yes") for size in (1, 2, 99))
    assert parse(make, ["never closed </thi"]) == ParsedMessage("never closed </thi", "")


def test_output_without_thinking_is_not_split() -> None:
    """S55: thinking is off, so a closing tag is text like any other."""
    make = lambda: parser(None, "deepseek_v4")  # noqa: E731
    assert parse(make, ["hm</think>yes <think>no"]) == ParsedMessage("", "hm</think>yes <think>no")
    assert parse(make, [" \n<thi"]) == ParsedMessage("", " \n<thi")


def test_output_that_opens_its_own_reasoning() -> None:
    make = lambda: parser(None, "think")  # noqa: E731
    for size in (1, 3, 99):
        assert parse(make, pieces_of("\n<think>\nhm\n</think>\n\nyes", size)) == ParsedMessage("\nhm\n", "\n\nyes")


def test_call_inside_unclosed_reasoning_ends_it() -> None:
    block = dsml_block([("f", {})])
    message = _every_cut("deepseek_v4", f"I will call it.{block}")
    assert (message.reasoning, _calls(message)) == ("I will call it.", [("f", "{}", True)])


def test_talk_about_the_markup_inside_reasoning_stays_there() -> None:
    text = "I must write <｜DSML｜tool_calls> first, <｜DSML｜tool_calls>\nthen"
    assert _every_cut("deepseek_v4", f"{text}</think>ok") == ParsedMessage(text, "ok")
    assert _every_cut("deepseek_v4", "so <｜DSML｜tool_calls>\n") == ParsedMessage("so ", "")


def test_without_tools_markup_is_content() -> None:
    from tokenmill.text.parsers.registry import ParserNames, build_parser

    target = build_parser(ParserNames("deepseek_v4", "deepseek_v4"), tools=[], starts_in_reasoning=True)
    block = dsml_block([("f", {})])
    assert parse(lambda: target, [f"hm</think>{block}"]) == ParsedMessage("hm", block)


# -- JSON formats --


def test_hermes_arguments_keep_their_text_and_may_be_a_string_null_or_missing() -> None:
    cases = {
        '{"name": "f", "arguments": {"a":1,  "b": [true]}}': '{"a":1,  "b": [true]}',
        '{"arguments": {"a": 1}, "name": "f"}': '{"a": 1}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}': '{"a": 1}',
        '{"name": "f", "arguments": null}': "{}",
        '{"id": 3, "name": "f"}': "{}",
        '{"name": "f", "parameters": {}}': "{}",
        '{"name": "f", "arguments": {"a": "x\ny"}}': '{"a": "x\\ny"}',
    }
    for body, arguments in cases.items():
        assert _calls(_every_cut("hermes", f"<tool_call>{body}</tool_call>")) == [("f", arguments, True)]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        '{"name": 5}',
        '{"name": ""}',
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "no"}',
        '{"name": "f", "arguments": "{\\"a\\": 1} x"}',
        '{"name": "f", "name": "g", "arguments": {}}',
        '{"name": "f", "arguments": {}, "parameters": {}}',
        '{"name": "f", "arguments": {"a": 01}}',
        '{"name": "f", "arguments": {"a": +1}}',
        '{"name": "f", "arguments": {"a": tru}}',
        '{"name": "f", "arguments": {"a": "\\x"}}',
        '{"name": "f", "arguments": {"a" 1}}',
        '{"name": "f", "arguments": {"a": 1,}}',
        '{"name": "f" "arguments": {}}',
        '{"name" "f"}',
        '{name: "f"}',
        '{"name": "f", "arguments": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}",
    ],
)
def test_malformed_hermes_is_content_verbatim_and_once(body: str) -> None:
    """S47"""
    text = f"so\n<tool_call>\n{body}\n</tool_call>, done"
    message = _every_cut("hermes", text)
    if len(body) > HELD_CHARS:  # too long to take back
        assert not message.tool_calls[0].is_complete
    else:
        assert message == ParsedMessage("", text)


def test_hermes_call_without_its_closing_tag_is_whole() -> None:
    assert _calls(_every_cut("hermes", '<tool_call>\n{"name": "f", "arguments": {}}')) == [("f", "{}", True)]
    text = '<tool_call>{"name": "f", "arguments": {}} but</tool_call>'
    assert _every_cut("hermes", text) == ParsedMessage("", text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}',
        '{"name": "Ada"}',
        '{"name": "Ada", "par',
        '{"answer": {"name": "f", "parameters": {}}}',
        "[1, 2]",
        "Hello {",
        "  {",
        '{"name": "f", "parameters": {"a": 1},}',
    ],
)
def test_json_that_is_no_call_is_content(text: str) -> None:
    assert _every_cut("llama3_json", text) == ParsedMessage("", text)


def test_json_answer_streams_at_its_first_foreign_key() -> None:
    target = FORMATS_BY_NAME["llama3_json"].make()
    target.feed('{"ans')
    assert target.feed('wer"')[0].text == '{"answer"'  # type: ignore[union-attr]


def test_llama_call_followed_by_text() -> None:
    message = _every_cut("llama3_json", '{"name": "f", "parameters": {"a": "x"}} ; now text')
    assert (_calls(message), message.content) == ([("f", '{"a": "x"}', True)], " ; now text")


# -- pythonic --


def test_pythonic_values_become_json() -> None:
    text = "[ns.f(a='it\\'s', b=-1.5, c=[True, None, null], d={'k': (1, 2)}, e=\"\"), g()] and more"
    message = _every_cut("pythonic", text)
    arguments = {"a": "it's", "b": -1.5, "c": [True, None, None], "d": {"k": [1, 2]}, "e": ""}
    assert _calls(message) == [("ns.f", json.dumps(arguments), True), ("g", "{}", True)]
    assert message.content == " and more"


@pytest.mark.parametrize(
    "text",
    [
        "[f(1)]",
        "[f(**x)]",
        "[f(a=g())]",
        "[f(a={1: 2})]",
        "[f(a={**x})]",
        "[f(a=1e999)]",
        "[f(a=b'x')]",
        "[f(a=]",
        "[f(a=(])]",
        "[1] says",
        "[see](here)",
        "[",
        "[f",
        "[" + "f" * 600,
        "plain [f()]",
        "<|python_start|>[1]",
        "<|python_start|><|python_start|>",
        "[f(a='\\",
    ],
)
def test_list_that_is_no_list_of_calls_is_content(text: str) -> None:
    """S47"""
    assert _every_cut("pythonic", text) == ParsedMessage("", text)


def test_pythonic_list_cut_off_gives_its_whole_calls() -> None:
    assert _calls(_every_cut("pythonic", "[f(a=1), g(b=2")) == [("f", '{"a": 1}', True)]
    assert _calls(_every_cut("pythonic", "[f(a='\\d')]")) == [("f", '{"a": "\\\\d"}', True)]


# -- ids --


def test_call_ids_are_unique_and_hard_to_guess() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100 and all(len(call_id) >= 24 for call_id in ids)


def test_tools_of_any_shape_are_taken() -> None:
    from tokenmill.text.parsers.typed_values import ToolTypes

    shapes = [
        *TOOLS,
        {"name": "flat", "parameters": {"properties": {"e": {"enum": ["a"]}, "n": {"enum": [1]}, "x": True}}},
        {"function": {"name": "odd", "parameters": None}},
        {"function": "no"},
        {
            "name": "or",
            "parameters": {
                "properties": {
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "number": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
                    "open": {"anyOf": [{}]},
                }
            },
        },
    ]
    types = ToolTypes(shapes)
    assert [types.is_string("flat", key) for key in "enx"] == [True, False, None]
    assert [types.is_string("or", key) for key in ("maybe", "number", "open")] == [None, False, None]
    assert types.is_string("odd", "a") is None and types.is_string("missing", "a") is None


def test_parser_protocol_is_met_by_all() -> None:
    for format in FORMATS_BY_NAME.values():
        target: OutputParser = format.make()
        assert target.finish() == []
    assert counting_ids()() == "call_0"
