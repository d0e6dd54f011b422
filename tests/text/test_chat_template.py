"""Chat templates render as transformers renders them, or fail with an error that a client can act on."""

import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.text.make_tokenizers import byte_level_bpe, write_folder
from tokenmill.core.errors import BadRequestError, CapabilityError, CheckpointError, ConfigError
from tokenmill.text.chat import CHAT_ENCODINGS, JinjaEncoding, load_encoding
from tokenmill.text.tokenizer import Tokenizer

USER = [{"role": "user", "content": "Hi <b>you</b> & 'me'"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hello  "},
    {"role": "assistant", "content": "Hello, 日本 ", "reasoning_content": "They greet."},
    {"role": "user", "content": "Bye"},
]
CALLS = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "n": 2}}}],
    },
    {"role": "tool", "content": "sun", "tool_call_id": "1"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "x": "<&>"}}}]

CHATML = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- bos_token + 'system\\nhelpful\\n' }}
    {%- endif %}
    {{- '<|' ~ message['role'] ~ '|>\\n' ~ message.content ~ eos_token ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

AGENT = """{%- set ns = namespace(last=-1, tools_shown=false) %}
{%- macro call(c) %}{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}{% endmacro %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- bos_token }}
{% if tools %}
    {{- "# Tools" }}{% for tool in tools %}{{ '\\n' + tool | tojson(indent=2) }}{% endfor %}
{% endif %}
{% for message in messages if message.role != 'tool' or tools is defined -%}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% if message.tool_calls is defined and message.tool_calls is not none %}
        {% for c in message.tool_calls %}{{ call(c.function) }}{% endfor %}
    {% elif message.content is string %}
        {% set reasoning = message.reasoning_content if message.reasoning_content is defined else '' %}
        {% if reasoning and loop.index0 < ns.last %}<think>{{ reasoning.strip('\\n') }}</think>{% endif %}
        {% generation %}{{ message.content | trim }}{% endgeneration %}
    {% endif %}
    {{ [message.role, loop.index, loop.last] | join('-') }}{{ "%s:%02d" | format(message.role, loop.length) }}
    {% if loop.index > 8 %}{% break %}{% endif %}
{% endfor %}
{% for k, v in {'a': 1, 'b': [1, 2]}.items() %}{{ k }}={{ v }};{% endfor %}
{{ messages[-1:] | map(attribute='role') | list }} {{ messages | selectattr('role', 'eq', 'user') | list | length }}
{{ (1, 2) + (3,) }} {{ 2 ** 10 }} {{ 'ab' * 3 }} {{ range(3) | sum }} {{ 'x' in messages[0].content }}
{{ ['a', 'b'] | reverse | join }}{{ 'A-b'.split('-')[1].upper() }}{{ "a%%b %d" % 3 }}{{ 'x{}y'.format(1) }}
{%- filter upper %}{{ messages[0].role }}{% endfilter %}{% set block %}{{ messages | length }}{% endset %}{{ block }}
{{- enable_thinking if enable_thinking is defined else 'unset' }}{{ documents | length if documents else 0 }}
{{- dict(a=1) }}{{ messages | groupby('role') | length }}{{ 'é"' | tojson }}{{ 'é' | tojson(ensure_ascii=true) }}
{%- macro twice() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(x) twice() %}<{{ x }}>{% endcall %}
{{- 'a\\nb' | indent(2) }}{{ 'aaa' | replace('a', 'b', 2) }}
{{- 1.256 | round(2) }}{{ [{'n': 1}] | sum(attribute='n') }}{{ messages | join(',', attribute='role') }}
{{- 'aba'.replace('a', 'c', 1) }}{{ '-'.join(['a', 'b']) }}{{ -7 // 2 }}{{ messages[0].content[:2] }}{{ none }}
{{- [nope] }}
{%- if add_generation_prompt %}<assistant>{% endif %}"""

PARTS = """{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}
{%- for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"""


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Encoding of a model with this template, or these templates by name."""

    def make(template: Any, **config: Any) -> JinjaEncoding:
        if isinstance(template, dict):
            template = [{"name": name, "template": text} for name, text in template.items()]
        config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template} | config
        folder = write_folder(tmp_path_factory.mktemp("m"), byte_level_bpe(), tokenizer_config=config)
        encoding = load_encoding("jinja", Tokenizer.load(folder))
        assert isinstance(encoding, JinjaEncoding)
        return encoding

    return make


@pytest.mark.requires_transformers
@pytest.mark.parametrize("template", [CHATML, AGENT, PARTS], ids=["chatml", "agent", "parts"])
@pytest.mark.parametrize("messages", [USER, TALK, CALLS], ids=["user", "talk", "calls"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    "options",
    [{}, {"add_generation_prompt": False}, {"enable_thinking": False, "documents": [{"title": "t", "text": "x"}]}],
    ids=["open", "closed", "more variables"],
)
def test_renders_as_transformers_does(make: Any, template: str, messages: Any, tools: Any, options: Any) -> None:
    """S53, S56: the same text, and the same ids as the reference encoder gives for it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    encoding = make(template)
    settings = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"} | options
    (expected,), _ = render_jinja_template([messages], tools=tools, chat_template=template, **settings)
    assert encoding.render(messages, tools, **options) == expected
    reference = byte_level_bpe().encode(expected, add_special_tokens=False).ids
    assert encoding.encode(messages, tools, **options) == reference


@pytest.mark.requires_transformers
@pytest.mark.parametrize("template", [CHATML, AGENT], ids=["as it is", "trimming"])
@pytest.mark.parametrize("content", ["The answer is", "  blank at both ends  ", "", "日本"])
def test_continues_the_final_message_as_transformers_does(make: Any, template: str, content: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [*USER, {"role": "assistant", "content": content}]
    (expected,), _ = render_jinja_template(
        [messages], chat_template=template, continue_final_message=True, bos_token="<s>", eos_token="</s>"
    )
    assert make(template).render(messages, continue_final_message=True) == expected


def test_chat_has_one_begin_token(make: Any) -> None:
    """S53: the template writes one; the tokenizer, which adds one to plain text, must not add another."""
    encoding = make("{{ bos_token }}{{ messages[0].content }}")
    ids = encoding.encode([{"role": "user", "content": "the"}])
    hf = byte_level_bpe()
    assert ids == hf.encode("the").ids
    assert ids.count(hf.token_to_id("<s>")) == 1


def test_text_parts_are_joined(make: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert make(PARTS).render([{"role": "user", "content": parts}]) == "[user]a\nb"


def test_the_templates_own_words_reach_the_client(make: Any) -> None:
    template = "{{ raise_exception('Only user may begin, not ' ~ messages[0].role) if messages[0].role != 'user' }}"
    with pytest.raises(BadRequestError, match="refuses these messages: Only user may begin, not system") as error:
        make(template).encode([{"role": "system", "content": "x"}])
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 + 'a' }}", "cannot write these messages .TypeError"),
        ("{{ messages[0].nothing.more }}", "cannot write these messages .UndefinedError"),
        ("{% include 'x' %}", "cannot write these messages .TypeError"),
        ("{{ messages.append(1) }}", "sandbox forbids"),
        ("{{ ''.__class__.__mro__ }}", "sandbox forbids"),
        ("{% set ns = namespace() %}{% set ns.__x__ = 1 %}", "sandbox forbids"),
        ("{% set ns = namespace(_x=1) %}", "sandbox forbids"),
        ("{{ raise_exception('x' * 5000) }}", "x…$"),
    ],
)
def test_templates_that_fail_are_a_bad_request(make: Any, template: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        make(template).encode(USER)


def test_bad_messages_are_refused_before_rendering(make: Any) -> None:
    with pytest.raises(BadRequestError, match="at least one message"):
        make(CHATML).encode([])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "line 1: "),
        ("a\n{{ x", "line 2: "),
        ("{{ x|nofilter }}", "nofilter"),
        ("{{ " + "(" * 3000 + "x" + ")" * 3000 + " }}", "nested too deeply"),
        ("x" * 300_000, "more than 262144"),
    ],
)
def test_templates_that_cannot_be_compiled_are_a_checkpoint_error(make: Any, template: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        make(template)
    assert "'default'" in str(error.value)


def test_a_model_without_template_says_where_to_go(make: Any) -> None:
    with pytest.raises(CapabilityError, match="/v1/completions"):
        make(None).encode(USER)


def test_named_templates(make: Any) -> None:
    encoding = make({"default": "D", "tool_use": "T", "rag": "R"})
    assert encoding.render(USER) == "D"
    assert encoding.render(USER, tools=TOOLS) == "T"
    assert encoding.render(USER, tools=[]) == "D"
    assert encoding.render(USER, tools=TOOLS, chat_template="rag") == "R"
    with pytest.raises(BadRequestError, match=r"no chat template '\{\{ x \}\}': possible are default, rag, tool_use"):
        encoding.render(USER, chat_template="{{ x }}")
    with pytest.raises(BadRequestError, match="possible are rag"):
        make({"rag": "R"}).render(USER)


def test_continuing_needs_something_to_continue(make: Any) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(BadRequestError, match="needs a last message with content"):
        make(CHATML).render([{"role": "assistant", "tool_calls": [call]}], continue_final_message=True)
    with pytest.raises(BadRequestError, match="does not write the last message"):
        make("{{ messages[0].role }}").render(USER, continue_final_message=True)
    with pytest.raises(BadRequestError, match="exclude each other"):
        make(CHATML).render(USER, continue_final_message=True, add_generation_prompt=True)


def test_now_is_passed_in(tmp_path: Path) -> None:
    config = {"chat_template": "{{ strftime_now('%d %b %Y') }}"}
    tokenizer = Tokenizer.load(write_folder(tmp_path, byte_level_bpe(), tokenizer_config=config))
    assert JinjaEncoding(tokenizer, now=lambda: datetime(2024, 7, 26)).render(USER) == "26 Jul 2024"


def test_other_encodings_come_from_the_registry(byte_tokenizer: Tokenizer) -> None:
    assert "jinja" in CHAT_ENCODINGS.names()
    with pytest.raises(ConfigError, match="chat encoding 'ninja' is unknown: did you mean 'jinja'"):
        load_encoding("ninja", byte_tokenizer)


def test_threads_share_one_encoding(make: Any) -> None:
    """Each rendering has its own budget and variables."""
    encoding = make(CHATML)
    results: dict[int, set[str]] = {i: set() for i in range(4)}

    def work(i: int) -> None:
        for _ in range(50):
            results[i].add(encoding.render([{"role": "user", "content": f"{i} " * 50}]))

    threads = [threading.Thread(target=work, args=(i,)) for i in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(texts) == 1 and f"{i} {i}" in next(iter(texts)) for i, texts in results.items())


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}", "user:x;assistant:;"),
        ("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "user:x;assistant:;"),
        ("{% for m in messages %}{{ m.role }}:{% if m.content is none %}CALL{% endif %};{% endfor %}",
         "user:;assistant:CALL;"),
        ("{% if tools is not none %}T{% endif %}{% for m in messages %}{{ m.role + ':' + m.content }};{% endfor %}",
         "user:x;assistant:;"),
    ],
)  # fmt: skip
def test_content_of_a_message_that_is_nothing_but_calls(template: str, expected: str, tmp_path: Path) -> None:
    """Whether the template tests it for none or joins it; "None" is never written."""
    tokenizer = Tokenizer.load(
        write_folder(tmp_path / "t", byte_level_bpe(), tokenizer_config={"chat_template": template})
    )
    messages = [{"role": "user", "content": "x"}, CALLS[1] | {"content": None}]
    assert JinjaEncoding(tokenizer).render(messages) == expected
