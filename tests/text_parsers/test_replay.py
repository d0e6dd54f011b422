"""What the model wrote is encoded back to the very ids it wrote, so that the next turn's prefix is the cached one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.text_parsers.helpers import counting_ids, deepseek_outputs
from tests.text_parsers.make_deepseek_v4_goldens import HELLO, RYE, TOOLS
from tokenmill.text.encodings.deepseek_v4 import DeepseekV4Encoding
from tokenmill.text.encodings.prompt_pieces import PromptPieces
from tokenmill.text.encodings.replay import ReplayStore, part_key
from tokenmill.text.parsers.events import ParsedMessage, collect
from tokenmill.text.parsers.registry import ParserNames, build_parser
from tokenmill.text.tokenizer import Tokenizer

_SPECIAL = ("<think>", "</think>", "｜DSML｜")


def _sampled(tokenizer: Tokenizer, text: str, seed: int = 0) -> list[int]:
    """Ids of `text` as a model may choose them: cut at random places, the format's own tokens whole."""
    rng = random.Random(seed)
    ids: list[int] = []
    while text:
        special = next((token for token in _SPECIAL if text.startswith(token)), None)
        end = len(special) if special else rng.randint(1, 4)
        while not special and any(token in text[:end] or token[0] in text[1:end] for token in _SPECIAL):
            end -= 1
        ids += tokenizer.encode(text[:end], add_special_tokens=False)
        text = text[end:]
    return ids


def _message(parsed: ParsedMessage) -> dict[str, Any]:
    """The assistant message as a server sends it."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content or None}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def _answer(encoding: DeepseekV4Encoding, prompt: list[int], text: str) -> dict[str, Any]:
    names = ParserNames("deepseek_v4", "deepseek_v4")
    inside = encoding.opens_reasoning(prompt)
    parser = build_parser(names, tools=TOOLS, starts_in_reasoning=inside, make_id=counting_ids())
    return _message(collect([*parser.feed(text), *parser.finish()]))


def _follow_up(message: dict[str, Any]) -> list[dict[str, Any]]:
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in message.get("tool_calls", ())]
    return results or [RYE]


def _turn(
    tokenizer: Tokenizer, text: str, tools: Any, *, thinking: bool = True
) -> tuple[DeepseekV4Encoding, ReplayStore, list[int], dict[str, Any]]:
    """One answer, sampled in unusual tokens and remembered: the encoding, the store, prompt + answer, the message."""
    encoding, store = DeepseekV4Encoding(tokenizer), ReplayStore()
    prompt = encoding.encode([HELLO], tools, thinking=thinking)
    message = _answer(encoding, prompt, text)
    output = [*_sampled(tokenizer, text), tokenizer.eos_token_ids[0]]
    assert encoding.remember(store, prompt, output, message)
    return encoding, store, prompt + output, message


_CALLS = """

<｜DSML｜tool_calls>
<｜DSML｜invoke name="mixer">
<｜DSML｜parameter name="speed" string="false"> 3 </｜DSML｜parameter>
<｜DSML｜parameter name="label" string="true">the thing</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜tool_calls>"""


@pytest.mark.parametrize(
    ("text", "tools", "thinking"),
    [
        ("thinking the thing</think>the thing", TOOLS, True),
        (f"thinking</think>the thing{_CALLS}", TOOLS, True),
        (f"thinking</think>{_CALLS}", TOOLS, True),
        ("the thing 😀", None, False),
        (f"the thing{_CALLS}", TOOLS, False),
        ("thinking the thing, cut off", TOOLS, True),
    ],
)
def test_next_prompt_begins_with_the_last_one_and_its_answer(
    tokenizer: Tokenizer, text: str, tools: Any, thinking: bool
) -> None:
    encoding, store, before, message = _turn(tokenizer, text, tools, thinking=thinking)
    if "cut off" in text:  # no end of thinking was sampled; the format puts one
        before = before[:-1]
    messages = [HELLO, message, *_follow_up(message)]
    after = encoding.encode(messages, tools, thinking=thinking, replay=store)
    assert after[: len(before)] == before
    assert encoding.encode(messages, tools, thinking=thinking)[: len(before)] != before  # the ids are unusual indeed


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(output=deepseek_outputs(), seed=st.integers(0, 99))
def test_any_answer_is_replayed_exactly(small_tokenizer: Tokenizer, output: Any, seed: int) -> None:
    encoding, store = DeepseekV4Encoding(small_tokenizer), ReplayStore()
    prompt = encoding.encode([HELLO], TOOLS)
    message = _answer(encoding, prompt, output.text)
    ids = [*_sampled(small_tokenizer, output.text, seed), small_tokenizer.eos_token_ids[0]]
    is_exact = encoding.remember(store, prompt, ids, message)
    after = encoding.encode([HELLO, message, *_follow_up(message)], TOOLS, replay=store)
    assert is_exact or "<think>" in output.text.split("</think>")[0]
    if is_exact:
        assert after[: len(prompt + ids)] == prompt + ids


def test_dropped_reasoning_leaves_the_answer_as_sampled(tokenizer: Tokenizer) -> None:
    encoding, store, before, message = _turn(tokenizer, "thinking</think>the thing", None)
    answer = before[before.index(tokenizer.token_to_id("</think>")) :]  # type: ignore[arg-type]
    after = encoding.encode([HELLO, message, RYE], replay=store)
    start = after.index(answer[0])
    assert after[start : start + len(answer)] == answer
    assert tokenizer.encode("thinking", False)[0] not in after[:start]


def test_reasoning_that_a_client_leaves_out_comes_back_with_its_calls(tokenizer: Tokenizer) -> None:
    encoding, store, before, message = _turn(tokenizer, f"thinking</think>{_CALLS}", TOOLS)
    del message["reasoning_content"]
    after = encoding.encode([HELLO, message, *_follow_up(message)], TOOLS, replay=store)
    assert after[: len(before)] == before


@pytest.mark.parametrize("change", ["content", "reasoning", "arguments", "id", "scope"])
def test_a_changed_message_is_written_anew(tokenizer: Tokenizer, change: str) -> None:
    encoding, store, before, message = _turn(tokenizer, f"thinking</think>the thing{_CALLS}", TOOLS)
    if change == "content":
        message["content"] = "the things"
    elif change == "reasoning":
        message["reasoning_content"] = "thinking!"
    elif change == "arguments":
        message["tool_calls"][0]["function"]["arguments"] = '{"speed": 4}'
    elif change == "id":
        message["tool_calls"][0]["id"] = "call_9"
    messages = [HELLO, message, *_follow_up(message)]
    after = encoding.encode(messages, TOOLS, replay=store, replay_scope="other" if change == "scope" else "")
    plain = encoding.encode(messages, TOOLS)
    assert after[: len(before)] != before
    text = tokenizer.decode(after, False)
    if change == "reasoning":  # the answer itself is still the one that was sampled
        assert "> 3 <" in text
        text = text.replace("> 3 <", ">3<")
    assert text == tokenizer.decode(plain, False)


def test_a_message_that_is_not_what_was_sampled_is_not_kept(tokenizer: Tokenizer) -> None:
    """Cut at a stop string, or changed on the way."""
    encoding, store = DeepseekV4Encoding(tokenizer), ReplayStore()
    prompt = encoding.encode([HELLO], thinking=False)
    ids = tokenizer.encode("the thing. More", False)
    assert not encoding.remember(store, prompt, ids, {"content": "the thing."})
    assert not encoding.remember(store, prompt, ids, {"content": "the thing. More", "reasoning_content": "x"})
    assert not encoding.remember(store, prompt, ids, {"content": "the thing. More", "tool_calls": _tool_calls()})
    assert len(store) == 0
    assert encoding.remember(store, prompt, ids, {"content": "the thing. More"})
    assert len(store) == 1 and store.num_tokens == len(ids)


def _tool_calls() -> list[dict[str, Any]]:
    return [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_continued_message_is_never_replayed(tokenizer: Tokenizer) -> None:
    encoding, store, _, message = _turn(tokenizer, "the thing", None, thinking=False)
    messages = [HELLO, {**message, "prefix": True}]
    assert encoding.encode(messages, thinking=False, replay=store) == encoding.encode(messages, thinking=False)


def test_store_forgets_what_was_not_used_for_longest() -> None:
    store = ReplayStore(max_tokens=10)
    keys = [part_key("answer", "", i) for i in range(4)]
    for i in range(3):
        store.put(keys[i], [i, i, i])
    assert store.get(keys[0]) == [0, 0, 0]
    store.put(keys[3], [3, 3])
    assert store.get(keys[1]) is None and store.get(keys[0]) == [0, 0, 0]
    assert store.num_tokens == 8 and len(store) == 3
    store.put(keys[0], [9])
    assert store.get(keys[0]) == [9] and store.num_tokens == 6
    store.put(keys[1], range(11))
    assert store.get(keys[1]) is None and store.num_tokens == 6


def test_keys_cannot_be_mistaken_for_each_other() -> None:
    contents = [("a", "b"), ("ab", ""), ("a", "", "b"), (["a"], "b"), ("a", None)]
    assert len({part_key("answer", "", *content) for content in contents}) == len(contents)
    assert len({part_key(kind, scope) for kind in "ab" for scope in "ab"}) == 4


def test_ids_stand_only_between_tokens_that_join_with_nothing() -> None:
    pieces = PromptPieces(["<a>"])
    pieces.text_piece("x")
    assert not pieces.is_at_boundary
    with pytest.raises(AssertionError):
        pieces.id_piece([1], "y")
    pieces.text_piece("<a>")
    pieces.id_piece([1], "y")
    with pytest.raises(AssertionError):
        pieces.text_piece("z")
    pieces.text_piece("<a>")
    assert pieces.text() == "x<a>y<a>"
