"""What answers look like, and that streaming them changes nothing but the cuts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import chain, cycle, repeat
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.fakes import FakeDispatcher, card, ids
from tests.api.live import LiveServer, chat_body, parse_events
from tokenmill.api.config import ApiConfig
from tokenmill.core.request import Request
from tokenmill.text.tokenizer import Tokenizer

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ROUTES = {CHAT: chat_body(), COMPLETION: {"model": "bytes", "prompt": "hi"}}
both_routes = pytest.mark.parametrize("path", ROUTES)


def says(*outputs: str | bytes) -> Callable[[Request], Sequence[int]]:
    """Choice i says outputs[i] (the last one for the rest), then the end-of-sequence id."""
    return lambda request: [*ids(outputs[min(request.choice_index, len(outputs) - 1)]), 0]


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def news_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


def joined(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Per choice: everything its chunks said, put together."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": "", "logprobs": None, "finish_reason": None})
    for choice in chain.from_iterable(event["choices"] for event in events):
        mine = choices[choice["index"]]
        assert mine["finish_reason"] is None, "nothing comes after the finish reason"
        mine["text"] += news_of(choice)
        mine["finish_reason"] = choice["finish_reason"]
        mine["stop_reason"] = choice.get("stop_reason")
        mine["token_ids"] = [*mine.get("token_ids", []), *choice.get("token_ids", [])]
        if choice["logprobs"] is not None:
            old = mine["logprobs"] or {key: [] for key in choice["logprobs"]}
            mine["logprobs"] = {key: old[key] + choice["logprobs"][key] for key in old}
        mine.update({key: choice[key] for key in ("prompt_logprobs", "prompt_token_ids") if key in choice})
    return choices


def whole(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The same of an answer in one piece."""
    return {
        choice["index"]: {
            "text": text_of(choice),
            "logprobs": choice["logprobs"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice.get("stop_reason"),
            "token_ids": choice.get("token_ids", []),
            **{key: choice[key] for key in ("prompt_logprobs", "prompt_token_ids") if key in choice},
        }
        for choice in answer["choices"]
    }


def ask(server: LiveServer, path: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same request whole and as a stream; both must agree in everything but money and cache."""
    body = ROUTES[path] | fields
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    answer = response.json()
    events = server.stream(path, body | {"stream_options": {"include_usage": True}})
    assert joined(events) == whole(answer)
    usage, streamed = answer["usage"], events[-1]["usage"]
    assert events[-1]["choices"] == []
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[key] == streamed[key]
    return answer, events


# -- shapes --


def test_chat(server: LiveServer) -> None:
    server.dispatcher.script = says("Hello")
    answer, events = ask(server, CHAT)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "bytes" and answer["created"] > 1e9
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello"}
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] is None
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert deltas[0] == {"role": "assistant", "content": "H"}
    assert all("role" not in delta for delta in deltas[1:])


def test_completion(server: LiveServer) -> None:
    server.dispatcher.script = says("Hello")
    answer, events = ask(server, COMPLETION)
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert {event["object"] for event in events} == {"text_completion"}
    assert answer["choices"][0]["text"] == "Hello"
    assert answer["usage"]["completion_tokens"] == 6, "the end-of-sequence id counts"


@both_routes
def test_defaults(server: LiveServer, path: str) -> None:
    """Completions end after 16 tokens, chats when the context or the pool is full."""
    answer, _ = ask(server, path, seed=1)
    num_prompt = answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == (16 if path == COMPLETION else 2048 - num_prompt)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_null_is_absent(server: LiveServer) -> None:
    fields = "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty logit_bias seed stop "
    fields += "max_tokens min_tokens stop_token_ids n logprobs stream stream_options user tools response_format"
    body = ROUTES[CHAT] | dict.fromkeys(fields.split())
    server.dispatcher.script = says("ok")
    assert server.post(CHAT, body).json()["choices"][0]["message"]["content"] == "ok"
    assert server.dispatcher.seen[0].sampling.temperature == 1.0


def test_harmless_wishes(server: LiveServer) -> None:
    """Unknown keys, and known ones that ask for nothing, are let through."""
    body = chat_body(
        max_tokens=1, response_format={"type": "text"}, tool_choice="none",
        tools=[{"type": "function", "function": {"name": "f"}}],
        modalities=["text"], best_of=1, store=False, metadata={"a": "b"}, service_tier="auto", unknown={"x": [1]},
        parallel_tool_calls=True, reasoning_effort="low", prediction={"type": "content", "content": "x"},
        guided_json=None, suffix=None, user="u1",
    )  # fmt: skip
    assert server.post(CHAT, body).status_code == 200
    assert server.complete(max_tokens=1, suffix="", best_of=1, skip_special_tokens=True, foo=1).status_code == 200


def test_fields_reach_the_fleet(server: LiveServer) -> None:
    body = chat_body(
        temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={"65": 5}, seed=-7, stop="!", stop_token_ids=[9.0], min_tokens=2,
        max_completion_tokens=5.0, max_tokens=3, ignore_eos=True, include_stop_str_in_output=True, priority=-3,
        user="tenant-1", cache_salt="salt", prompt_logprobs=1,
    )  # fmt: skip
    assert server.post(CHAT, body).status_code == 200
    request = server.dispatcher.seen[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 0, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.0, 1.5)
    assert sampling.logit_bias == {65: 5.0} and sampling.stop == ("!",) and sampling.stop_token_ids == (9,)
    assert (sampling.min_tokens, sampling.max_tokens, sampling.n, sampling.prompt_logprobs) == (2, 5, 1, 1)
    assert sampling.ignore_eos and sampling.include_stop_str_in_output
    assert (request.seed, request.priority, request.tenant, request.cache_salt) == (-7, -3, "tenant-1", "salt")
    assert request.eos_token_ids == (0,) and request.model == "bytes" and request.arrival_s > 0


def test_seeds_and_hashes(server: LiveServer) -> None:
    """A seed is drawn once per request; equal prompts have equal block hashes, salted ones do not."""
    for fields in ({"n": 2}, {}, {"cache_salt": "x"}):
        assert server.complete("a" * 40, max_tokens=1, **fields).status_code == 200
    first, second, third, salted = server.dispatcher.seen
    assert first.seed == second.seed and first.seed != third.seed
    assert (first.choice_index, second.choice_index) == (0, 1)
    assert first.request_id[:-1] == second.request_id[:-1] and first.request_id[-2:] == "-0"
    assert len(first.block_hashes) == 2 and first.block_hashes == third.block_hashes
    assert not set(first.block_hashes) & set(salted.block_hashes)


def test_content_parts(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    as_parts = {"model": "bytes", "messages": [{"role": "user", "content": parts}]}
    as_text = {"model": "bytes", "messages": [{"role": "user", "content": "one\ntwo"}]}
    tokens = [server.post("/tokenize", body).json()["tokens"] for body in (as_parts, as_text)]
    assert tokens[0] == tokens[1]


def test_without_model_name(server: LiveServer) -> None:
    """Where one model is served, it need not be named."""
    answer = server.post(COMPLETION, {"prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200 and answer.json()["model"] == "bytes"


def test_several_models_and_aliases(make_server: Callable[..., LiveServer]) -> None:
    dispatcher = FakeDispatcher(card("org/one"), card("two"))
    server = make_server(ApiConfig(port=0, model_aliases={"uno": "org/one"}), dispatcher)
    assert [model["id"] for model in server.client.get("/v1/models").json()["data"]] == ["org/one", "two", "uno"]
    assert server.client.get("/v1/models/org/one").json()["max_model_len"] == 4096
    assert server.client.get("/v1/models/uno").json()["root"] == "org/one"
    answer = server.complete(model="uno", max_tokens=1).json()
    assert answer["model"] == "uno" and dispatcher.seen[-1].model == "org/one"
    unnamed = server.post(COMPLETION, {"prompt": "a"})
    assert unnamed.status_code == 400 and "org/one, two, uno" in unnamed.json()["error"]["message"]
    dispatcher.is_announced = False
    assert server.complete(model="uno").status_code == 503
    assert server.complete(model="nope").status_code == 404


# -- tokens in, tokens out --


def test_tokenize_and_detokenize(server: LiveServer) -> None:
    answer = server.post("/tokenize", {"prompt": "hé", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "hé"}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@both_routes
def test_prompts_are_what_tokenize_says(server: LiveServer, path: str) -> None:
    """S53: template and tokenizer do not both add a begin token; the ids are those of the reference encoder."""
    body = ROUTES[path]
    tokens = server.post("/tokenize", body).json()["tokens"]
    assert server.post(path, body | {"max_tokens": 1}).json()["usage"]["prompt_tokens"] == len(tokens)
    assert server.dispatcher.seen[0].prompt_token_ids == tokens
    tokenizer = Tokenizer.load(str(server.dispatcher.all_cards["bytes"].tokenizer_path))
    written = "<user>hi\n<assistant>" if path == CHAT else "hi"
    assert tokens == tokenizer.encode(written, add_special_tokens=False)


def test_template_options(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}]

    def written(**fields: Any) -> str:
        tokens = server.post("/tokenize", {"messages": messages, **fields}).json()["tokens"]
        return str(server.post("/detokenize", {"tokens": tokens}).json()["prompt"])

    assert written() == "<user>hi\n<assistant>I am\n<assistant>"
    assert written(add_generation_prompt=False) == "<user>hi\n<assistant>I am\n"
    assert written(continue_final_message=True) == "<user>hi\n<assistant>I am"
    assert written(chat_template_kwargs={"unused": 1}) == written()


def test_token_id_prompts(server: LiveServer) -> None:
    """Ids, lists of texts, lists of ids: one choice for each."""
    server.dispatcher.script = says("x")
    for prompt, num in ((ids("hi"), 1), (["a", "b", "c"], 3), ([[1], [2, 3]], 2)):
        answer = server.complete(prompt).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(num))
    assert [request.prompt_token_ids for request in server.dispatcher.seen[-2:]] == [[1], [2, 3]]
    assert answer["usage"]["prompt_tokens"] == 3


def test_long_prompts_are_encoded_beside_the_loop(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, long_prompt_chars=4))
    assert server.complete("a longer prompt", max_tokens=1).json()["usage"]["prompt_tokens"] == 15
    assert server.chat("a longer prompt", max_tokens=1).status_code == 200


def test_chat_template_file(make_server: Callable[..., LiveServer], tmp_path: Any) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}!")
    server = make_server(ApiConfig(port=0, chat_template=str(template)))
    assert server.chat("hi", max_tokens=1).json()["usage"]["prompt_tokens"] == 3


# -- n, echo, ids --


@both_routes
def test_choices_interleave(server: LiveServer, path: str) -> None:
    """n choices run side by side; the prompt is counted once, the outputs together."""
    server.dispatcher.script = says("aaaa", "bb", "cccccc")
    answer, events = ask(server, path, n=3)
    assert [text_of(choice) for choice in answer["choices"]] == ["aaaa", "bb", "cccccc"]
    assert answer["usage"]["completion_tokens"] == 4 + 2 + 6 + 3
    order = [event["choices"][0]["index"] for event in events if event["choices"]]
    assert order[:3] != [0, 0, 0], "no choice waits for another one"


@pytest.mark.parametrize("prompt", ["hé", ids("hé")])
def test_echo(server: LiveServer, prompt: Any) -> None:
    server.dispatcher.script = says("yo")
    answer, events = ask(server, COMPLETION, prompt=prompt, echo=True, n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["héyo", "héyo"]
    assert events[0]["choices"][0]["text"] == "héy"


def test_echo_with_logprobs(server: LiveServer) -> None:
    server.dispatcher.script = says("é!")
    answer, _ = ask(server, COMPLETION, prompt="hi", echo=True, logprobs=1, seed=1)
    choice = answer["choices"][0]
    assert "prompt_logprobs" not in choice, "nobody asked for vLLM's form"
    shown = choice["logprobs"]
    assert shown["tokens"] == ["h", "i", "bytes:\\xc3", "bytes:\\xa9", "!", "\x00"]
    assert shown["text_offset"] == [0, 1, 2, 2, 3, 4]
    assert shown["token_logprobs"][0] is None and shown["top_logprobs"][0] is None
    assert shown["top_logprobs"][4] == {"!": -0.1}


def test_prompt_logprobs(server: LiveServer) -> None:
    for path in ROUTES:
        answer, _ = ask(server, path, prompt_logprobs=2, max_tokens=2, seed=1)
        rows = answer["choices"][0]["prompt_logprobs"]
        assert len(rows) == answer["usage"]["prompt_tokens"] and rows[0] is None
        ranks = [entry["rank"] for entry in rows[1].values()]
        assert ranks in ([1, 2], [1, 2, None])
    # "i" is 105: the fake puts every fifth id below its alternatives.
    assert rows[1]["105"] == {"logprob": -50.0, "rank": None, "decoded_token": "i"}


@both_routes
def test_return_token_ids(server: LiveServer, path: str) -> None:
    server.dispatcher.script = says("né")
    answer, _ = ask(server, path, return_token_ids=True)
    choice = answer["choices"][0]
    assert choice["token_ids"] == [*ids("né"), 0]
    assert choice["prompt_token_ids"] == server.dispatcher.seen[0].prompt_token_ids


# -- logprobs --

ABSENT = object()


@pytest.mark.parametrize("top", [ABSENT, None, 0, 1, 5, 20, 21])
@pytest.mark.parametrize("logprobs", [ABSENT, None, False, True])
def test_chat_logprobs_matrix(server: LiveServer, logprobs: Any, top: Any) -> None:
    """S51: accepted or 400 by OpenAI's rules; top_logprobs is for logprobs=true, and 0 asks for nothing."""
    fields = {"logprobs": logprobs, "top_logprobs": top}
    given_fields = {name: value for name, value in fields.items() if value is not ABSENT}
    response = server.chat(max_tokens=3, seed=1, **given_fields)
    wanted = 0 if top in (ABSENT, None) else top
    if wanted > 20 or (wanted > 0 and logprobs is not True):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "top_logprobs"
        return
    shown = response.json()["choices"][0]["logprobs"]
    if logprobs is not True:
        assert shown is None
        return
    assert len(shown["content"]) == 3
    for entry in shown["content"]:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == wanted
        assert all(set(other) == {"token", "logprob", "bytes"} for other in entry["top_logprobs"])


@both_routes
@pytest.mark.parametrize("output", ["plain", "h\u00e9 \u20ac \U0001f600!", b"bad \xff\xc3 bytes"])
def test_logprobs_match_the_text(server: LiveServer, path: str, output: str | bytes) -> None:
    """One row per token, streamed or not; the bytes of the visible ones are the text."""
    server.dispatcher.script = says(output)
    fields = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    answer, _ = ask(server, path, return_token_ids=True, **fields)
    choice = answer["choices"][0]
    data = output.encode() if isinstance(output, str) else output
    if path == CHAT:
        rows = choice["logprobs"]["content"]
        assert b"".join(bytes(row["bytes"]) for row in rows[:-1]) == data
    else:
        rows = choice["logprobs"]["tokens"]
        assert choice["logprobs"]["text_offset"][-1] == len(choice["text"])
    assert len(rows) == len(choice["token_ids"]) == len(data) + 1


def test_impossible_logprobs_are_valid_json(server: LiveServer) -> None:
    """Minus infinity has no JSON: OpenAI's stand-in is sent."""
    from tokenmill.api.logprobs import chat_logprobs
    from tokenmill.text.logprobs import TextLogprob

    row = TextLogprob(1, float("-inf"), "a", b"a", 0)
    assert json.loads(json.dumps(chat_logprobs([row]), allow_nan=False))["content"][0]["logprob"] == -9999.0


# -- stops --


@both_routes
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
def test_no_part_of_a_stop_string_is_shown(server: LiveServer, path: str, length: int) -> None:
    """S41: a stop string over 1..6 tokens; no prefix of it that is followed by the rest reaches the client."""
    stop = "STOPPE"[:length]
    server.dispatcher.script = says("ab STO cd ST" + stop + "never seen")
    expected = ("ab STO cd ST" + stop + "never seen").split(stop)[0]
    answer, events = ask(server, path, stop=[stop, "unused"], max_tokens=100)
    choice = answer["choices"][0]
    assert text_of(choice) == expected
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    shown = ""
    for event in events[:-1]:
        shown += news_of(event["choices"][0])
        assert expected.startswith(shown)
    assert server.dispatcher.running == set()


@both_routes
def test_stop_kinds(server: LiveServer, path: str) -> None:
    server.dispatcher.script = says("one two three")
    for fields, text, reason in (
        ({"stop": " two"}, "one", " two"),
        ({"stop": " two", "include_stop_str_in_output": True}, "one two", " two"),
        ({"stop_token_ids": [ord("w")]}, "one t", ord("w")),
        ({"stop": [], "max_tokens": 50}, "one two three", None),
        ({"ignore_eos": True, "max_tokens": 14}, "one two three\x00", None),
    ):
        answer, _ = ask(server, path, **({"max_tokens": 50} | fields))
        choice = answer["choices"][0]
        assert text_of(choice) == text
        assert choice.get("stop_reason") == reason
        assert choice["finish_reason"] == ("length" if "ignore_eos" in fields else "stop")


@both_routes
def test_a_stop_string_ends_the_work(server: LiveServer, path: str) -> None:
    """What the engine would go on to make is aborted, not counted in usage, and the ledger calls the request good."""
    server.dispatcher.script = says("ab!" + "x" * 1000)
    before = server.dispatcher.ledger.totals().counts.num_good_requests
    answer = server.post(path, ROUTES[path] | {"stop": "!", "max_tokens": 900}).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert len(server.dispatcher.aborted) == 1
    assert server.dispatcher.ledger.totals().counts.num_good_requests == before + 1


@both_routes
def test_no_empty_chunks(server: LiveServer, path: str) -> None:
    """S42: every chunk has text, a role, a finish reason or usage; text is held back no longer than the stop string."""
    server.dispatcher.script = says("<<<<<<hello>>> " * 3)
    body = ROUTES[path] | {"stop": [">>>!", "<<x"], "max_tokens": 40, "stream_options": {"include_usage": True}}
    events = server.stream(path, body)
    assert news_of(events[0]["choices"][0])
    for event in events[:-1]:
        (choice,) = event["choices"]
        assert news_of(choice) or choice["finish_reason"], event
        assert event["usage"] is None
    assert events[-1]["usage"]["completion_tokens"] == 40


# -- cuts --

EMOJI = ["👍", "👩‍👩‍👧‍👦", "한국어", "हिन्दी", "é̂", "𝔘", "日本"]


@both_routes
@pytest.mark.parametrize(
    "output", [*(text.encode() for text in EMOJI), b"\x80\x80", b"a\xc3", b"\xf0\x9f\x91", b"\xff\xfe ok", b"\xe2\x82x"]
)
def test_characters_across_tokens(server: LiveServer, path: str, output: bytes) -> None:
    """S43: one byte per token; the stream is the whole decode with errors replaced, valid JSON, status 200."""
    server.dispatcher.script = says(output)
    answer, _ = ask(server, path, max_tokens=100)
    assert text_of(answer["choices"][0]) == output.decode(errors="replace")


@both_routes
def test_cut_in_mid_character(server: LiveServer, path: str) -> None:
    """S43: max_tokens ends the output inside a character."""
    server.dispatcher.script = says("👍👍")
    for max_tokens in range(1, 8):
        answer, _ = ask(server, path, max_tokens=max_tokens)
        assert text_of(answer["choices"][0]) == "👍👍".encode()[:max_tokens].decode(errors="replace")


@both_routes
def test_every_length(server: LiveServer, path: str) -> None:
    """S48, S49: for max_tokens 1..N the same finish reason, text and usage in both modes."""
    output = "a <b> é end"
    server.dispatcher.script = says(output)
    num_ids = len(output.encode()) + 1
    for max_tokens in range(1, num_ids + 2):
        answer, _ = ask(server, path, max_tokens=max_tokens, stop="<b>!")
        is_whole = max_tokens >= num_ids
        assert answer["choices"][0]["finish_reason"] == ("stop" if is_whole else "length")
        assert answer["usage"]["completion_tokens"] == min(max_tokens, num_ids)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    output=st.lists(st.sampled_from([*EMOJI, "ab", "STOP", "ST", "OP", " ", "<end>", "x\n"]), max_size=8).map("".join),
    tail=st.sampled_from([b"", b"\xc3", b"\xf0\x9f", b"\xff"]),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    stop=st.lists(st.sampled_from(["STOP", "OP ", "<end>", "한", "TST"]), max_size=2),
    path=st.sampled_from(list(ROUTES)),
    n=st.integers(1, 3),
    include_stop=st.booleans(),
    logprobs=st.booleans(),
)
def test_cuts_do_not_matter(
    server: LiveServer,
    output: str,
    tail: bytes,
    sizes: list[int],
    stop: list[str],
    path: str,
    n: int,
    include_stop: bool,
    logprobs: bool,
) -> None:
    """S41, S43, S50: streamed == whole for every text, stop and way of cutting the tokens into deltas."""
    server.dispatcher.script = says(output.encode() + tail)
    fields: dict[str, Any] = {"stop": stop, "n": n, "include_stop_str_in_output": include_stop, "max_tokens": 200}
    if logprobs:
        fields |= {"logprobs": True} if path == CHAT else {"logprobs": 1}
    server.dispatcher.cut = None
    one_by_one, _ = ask(server, path, **fields)
    server.dispatcher.cut = lambda request: cycle(sizes)
    in_pieces, _ = ask(server, path, **fields)
    assert whole(one_by_one) == whole(in_pieces)
    assert one_by_one["usage"]["completion_tokens"] == in_pieces["usage"]["completion_tokens"]


@pytest.mark.parametrize("interval", [1, 2, 7, 50])
def test_stream_interval(make_server: Callable[..., LiveServer], interval: int) -> None:
    """S52: flushed every n tokens, the text is the same and its end is there."""
    server = make_server(ApiConfig(port=0, stream_interval=interval))
    output = "The quick brown fox"
    server.dispatcher.script = says(output)
    for path in ROUTES:
        _, events = ask(server, path, max_tokens=100)
        pieces = [news_of(event["choices"][0]) for event in events[:-1]]
        assert "".join(pieces) == output
        assert pieces[0] == "T", "the first token is never delayed"
        assert len(pieces) <= 2 + len(output) // interval


def test_many_streams(server: LiveServer) -> None:
    """S50: 500 streams, 5 at a time, over both routes: each joined stream is the whole answer of its seed."""
    expected = {
        (path, seed): whole(server.post(path, ROUTES[path] | {"seed": seed, "max_tokens": 5}).json())
        for path in ROUTES
        for seed in range(10)
    }

    def some(first: int) -> None:
        connection = HTTPConnection("127.0.0.1", server.port)
        for i in range(first, 500, 5):
            path, seed = list(ROUTES)[i % 2], i // 5 % 10
            body = ROUTES[path] | {"seed": seed, "max_tokens": 5, "stream": True}
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            events = list(parse_events(connection.getresponse().read().decode()))
            assert events.pop() == "[DONE]"
            assert joined([json.loads(event) for event in events]) == expected[path, seed]
        connection.close()

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(some, range(5)))


# -- usage --


@both_routes
def test_usage(server: LiveServer, path: str) -> None:
    """S49: streamed usage is the whole one's; money is the ledger's; a second equal prompt is cached."""
    body = ROUTES[path] | {"max_tokens": 10, "n": 2, "seed": 3}
    if path == COMPLETION:
        body["prompt"] = "a prompt over several blocks, so that some of it can be cached"
    first, second = (server.post(path, body).json()["usage"] for _ in range(2))
    num_prompt = len(server.dispatcher.seen[0].prompt_token_ids)
    assert first["prompt_tokens"] == num_prompt and first["completion_tokens"] == 20
    assert first["total_tokens"] == num_prompt + 20
    assert second["prompt_tokens_details"]["cached_tokens"] == num_prompt // 16 * 16
    # 2 choices x 10 steps of 1 ms at $3.6/h and 100 W
    assert first["cost"] == pytest.approx({"usd": 20e-6, "joules": 2.0, "energy_source": "modelled"})
    streamed = server.stream(path, body | {"stream_options": {"include_usage": True}})[-1]["usage"]
    assert streamed.pop("cost") == pytest.approx(second.pop("cost"))
    assert streamed == second


@both_routes
def test_continuous_usage(server: LiveServer, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = server.stream(path, ROUTES[path] | {"max_tokens": 4, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 4, 4]
    assert "cost" in events[-1]["usage"]


def test_streams_without_options_carry_no_usage(server: LiveServer) -> None:
    for options in (None, {}, {"include_usage": False, "continuous_usage_stats": True}):
        events = server.stream(COMPLETION, ROUTES[COMPLETION] | {"max_tokens": 2, "stream_options": options})
        assert len(events) == 2 and all("usage" not in event for event in events)


def test_overrun_is_not_usage(server: LiveServer) -> None:
    """Tokens that come in one delta with the end of a stop string are neither shown nor counted."""
    server.dispatcher.script = says("ab!cdefgh")
    server.dispatcher.cut = lambda request: repeat(9)
    before = server.dispatcher.ledger.totals().counts
    answer, _ = ask(server, COMPLETION, stop="!")
    assert answer["usage"]["completion_tokens"] == 3
    after = server.dispatcher.ledger.totals().counts
    assert after.num_output_tokens - before.num_output_tokens == 6
    assert after.num_overrun_tokens - before.num_overrun_tokens == 12
