"""Every kind of bad input is answered with a 4xx in OpenAI's shape that names the fault, and hurts nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.fakes import FakeDispatcher, card, ids
from tests.api.live import LiveServer, chat_body, post_bytes, until_closed
from tokenmill.api.config import ApiConfig, LimitsConfig

CHAT, COMPLETION, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
HUGE = 10**400


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "prompt": "hi", **fields}


def says(*fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "messages": list(fields)}


#: (path, body, status, code, param)
TABLE: list[tuple[str, Any, int, str, str | None]] = [
    # prompts
    (COMPLETION, text(prompt=""), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=[]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=["a", ""]), 400, "invalid_request", "prompt[1]"),
    (COMPLETION, text(prompt=[[1], []]), 400, "invalid_request", "prompt[1]"),
    (COMPLETION, text(prompt=None), 400, "invalid_request", "prompt"),
    (COMPLETION, {"model": "bytes"}, 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=7), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt={"a": 1}), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=["a", 1]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=[1.5]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=[True]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=[1, 256]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=[-1]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt=[HUGE]), 400, "invalid_request", "prompt"),
    (COMPLETION, text(prompt="a" * 2048), 400, "context_length_exceeded", "prompt"),
    (CHAT, chat_body("a" * 5000), 400, "context_length_exceeded", "messages"),
    (CHAT, says(), 400, "invalid_request", "messages"),
    (CHAT, {"model": "bytes"}, 400, "invalid_request", "messages"),
    (CHAT, {"model": "bytes", "messages": "hi"}, 400, "invalid_request", "messages"),
    (CHAT, says("hi"), 400, "invalid_request", "messages[0]"),
    (CHAT, says({"content": "hi"}), 400, "invalid_request", "messages[0].role"),
    (CHAT, says({"role": "robot", "content": "hi"}), 400, "invalid_request", "messages[0].role"),
    (CHAT, says({"role": "user", "content": 5}), 400, "invalid_request", "messages[0].content"),
    (CHAT, says({"role": "user", "content": ["hi"]}), 400, "invalid_request", "messages[0].content[0]"),
    (
        CHAT,
        says({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        400,
        "unsupported",
        "messages[0].content[0]",
    ),
    (CHAT, says({"role": "assistant", "tool_calls": [3]}), 400, "invalid_request", "messages[0].tool_calls[0]"),
    # lengths
    (COMPLETION, text(max_tokens=0), 400, "invalid_request", "max_tokens"),
    (COMPLETION, text(max_tokens=-1), 400, "invalid_request", "max_tokens"),
    (COMPLETION, text(max_tokens=10**9), 400, "context_length_exceeded", "max_tokens"),
    (COMPLETION, text(max_tokens=2**40), 400, "invalid_request", "max_tokens"),
    (COMPLETION, text(max_tokens=HUGE), 400, "invalid_request", "max_tokens"),
    (COMPLETION, text(max_tokens=1.5), 400, "invalid_request", "max_tokens"),
    (COMPLETION, text(max_tokens="5"), 400, "invalid_request", "max_tokens"),
    (COMPLETION, text(max_tokens=True), 400, "invalid_request", "max_tokens"),
    (CHAT, chat_body(max_tokens=10**6), 400, "context_length_exceeded", "max_tokens"),
    (CHAT, chat_body(max_completion_tokens=10**6), 400, "context_length_exceeded", "max_completion_tokens"),
    (COMPLETION, text(max_tokens=4, min_tokens=5), 400, "invalid_request", "min_tokens"),
    (COMPLETION, text(min_tokens=-1), 400, "invalid_request", "min_tokens"),
    (COMPLETION, text(min_tokens=17), 400, "invalid_request", "min_tokens"),
    (CHAT, chat_body(min_tokens=4000), 400, "invalid_request", "min_tokens"),
    # sampling
    (COMPLETION, text(temperature=-0.1), 400, "invalid_request", "temperature"),
    (COMPLETION, text(temperature="hot"), 400, "invalid_request", "temperature"),
    (COMPLETION, text(temperature=HUGE), 400, "invalid_request", "temperature"),
    (COMPLETION, text(top_p=0), 400, "invalid_request", "top_p"),
    (COMPLETION, text(top_p=1.01), 400, "invalid_request", "top_p"),
    (COMPLETION, text(top_k=-2), 400, "invalid_request", "top_k"),
    (COMPLETION, text(min_p=2), 400, "invalid_request", "min_p"),
    (COMPLETION, text(presence_penalty=2.5), 400, "invalid_request", "presence_penalty"),
    (COMPLETION, text(frequency_penalty=-3), 400, "invalid_request", "frequency_penalty"),
    (COMPLETION, text(repetition_penalty=0), 400, "invalid_request", "repetition_penalty"),
    (COMPLETION, text(logit_bias={"x": 1}), 400, "invalid_request", "logit_bias.x"),
    (COMPLETION, text(logit_bias={"5": "y"}), 400, "invalid_request", "logit_bias.5"),
    (COMPLETION, text(logit_bias={"5": 101}), 400, "invalid_request", "logit_bias"),
    (COMPLETION, text(logit_bias={"300": 1}), 400, "invalid_request", "logit_bias"),
    (COMPLETION, text(logit_bias=[1]), 400, "invalid_request", "logit_bias"),
    (COMPLETION, text(seed="s"), 400, "invalid_request", "seed"),
    (COMPLETION, text(seed=2**64), 400, "invalid_request", "seed"),
    (COMPLETION, text(n=0), 400, "invalid_request", "n"),
    (COMPLETION, text(n=129), 400, "invalid_request", "n"),
    (COMPLETION, text(prompt=["a"] * 20, n=100), 400, "invalid_request", "n"),
    (COMPLETION, text(stop=5), 400, "invalid_request", "stop"),
    (COMPLETION, text(stop=[1]), 400, "invalid_request", "stop"),
    (COMPLETION, text(stop=""), 400, "invalid_request", "stop"),
    (COMPLETION, text(stop=["x"] * 17), 400, "invalid_request", "stop"),
    (COMPLETION, text(stop_token_ids=[256]), 400, "invalid_request", "stop_token_ids"),
    (COMPLETION, text(stop_token_ids=["a"]), 400, "invalid_request", "stop_token_ids[0]"),
    (COMPLETION, text(logprobs=21), 400, "invalid_request", "logprobs"),
    (COMPLETION, text(logprobs=True), 400, "invalid_request", "logprobs"),
    (COMPLETION, text(prompt_logprobs=-1), 400, "invalid_request", "prompt_logprobs"),
    (COMPLETION, text(ignore_eos=1), 400, "invalid_request", "ignore_eos"),
    (COMPLETION, text(priority=2**31), 400, "invalid_request", "priority"),
    (COMPLETION, text(cache_salt=""), 400, "invalid_request", "cache_salt"),
    (COMPLETION, text(stream="yes"), 400, "invalid_request", "stream"),
    (COMPLETION, text(stream_options={"include_usage": True}), 400, "invalid_request", "stream_options"),
    (COMPLETION, text(stream=True, stream_options={"include_usage": 1}), 400, "invalid_request",
     "stream_options.include_usage"),
    # templates
    (CHAT, chat_body(add_generation_prompt=True, continue_final_message=True), 400, "invalid_request",
     "continue_final_message"),
    (CHAT, chat_body(chat_template_kwargs={"messages": []}), 400, "invalid_request", "chat_template_kwargs.messages"),
    (CHAT, chat_body(chat_template_kwargs=[1]), 400, "invalid_request", "chat_template_kwargs"),
    # models
    (COMPLETION, text(model="nope"), 404, "model_not_found", "model"),
    (COMPLETION, text(model="n" * 10_000), 404, "model_not_found", "model"),
    (CHAT, chat_body(model="nope"), 404, "model_not_found", "model"),
    (COMPLETION, text(model=5), 400, "invalid_request", "model"),
    # wishes that cannot be served
    (CHAT, chat_body(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "unsupported", "tools"),
    (CHAT, chat_body(tool_choice="required"), 400, "invalid_request", "tool_choice"),
    (CHAT, chat_body(functions=[{"name": "f"}]), 400, "unsupported", "functions"),
    (CHAT, chat_body(response_format="json"), 400, "invalid_request", "response_format"),
    (CHAT, chat_body(modalities=["text", "audio"]), 400, "unsupported", "modalities"),
    (CHAT, chat_body(audio={"voice": "x"}), 400, "unsupported", "audio"),
    (CHAT, chat_body(chat_template="{{x}}"), 400, "unsupported", "chat_template"),
    (COMPLETION, text(suffix="end"), 400, "unsupported", "suffix"),
    (COMPLETION, text(best_of=3), 400, "unsupported", "best_of"),
    (COMPLETION, text(best_of=1, n=2), 400, "unsupported", "best_of"),
    (COMPLETION, text(use_beam_search=True), 400, "unsupported", "use_beam_search"),
    (COMPLETION, text(skip_special_tokens=False), 400, "unsupported", "skip_special_tokens"),
    # other routes
    (TOKENIZE, {"model": "bytes"}, 400, "invalid_request", "prompt"),
    (TOKENIZE, {"prompt": "a", "messages": []}, 400, "invalid_request", "prompt"),
    (TOKENIZE, {"messages": []}, 400, "invalid_request", "messages"),
    (TOKENIZE, {"messages": [{"role": "user"}], "tools": "f"}, 400, "invalid_request", "tools"),
    ("/detokenize", {"model": "bytes"}, 400, "invalid_request", "tokens"),
    ("/detokenize", {"tokens": [1, 999]}, 400, "invalid_request", "tokens"),
    ("/detokenize", {"tokens": [1, -5]}, 400, "invalid_request", "tokens"),
    # bodies
    (COMPLETION, [1], 400, "invalid_request", None),
    (COMPLETION, "hi", 400, "invalid_request", None),
    (COMPLETION, 5, 400, "invalid_request", None),
    ("/v1/embeddings", {"input": "x"}, 404, "not_found", None),
]  # fmt: skip


def check_error(response: Any, status: int, code: str, param: str | None) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 1000
    return str(error["message"])


@pytest.mark.parametrize(("path", "body", "status", "code", "param"), TABLE)
def test_bad_body(server: LiveServer, path: str, body: Any, status: int, code: str, param: str | None) -> None:
    response = server.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    message = check_error(response, status, code, param)
    assert len(message) > 20, "says what was asked and what is possible"
    assert not server.dispatcher.seen, "nothing of it reached the fleet"


def test_streams_are_refused_the_same_way(server: LiveServer) -> None:
    """An error before the first token has its own status, also when a stream was asked for."""
    check_error(server.chat(stream=True, temperature=-1), 400, "invalid_request", "temperature")


RAW: list[tuple[bytes, int, str]] = [
    (b"", 400, "not valid JSON"),
    (b"{", 400, "not valid JSON"),
    (b'{"prompt": "a",}', 400, "not valid JSON"),
    (b"{'prompt': 'a'}", 400, "not valid JSON"),
    (b'{"prompt": "\xff\xfe"}', 400, "byte 12 of the body is not valid UTF-8"),
    (b'{"prompt": "\xed\xa0\x80"}', 400, "not valid UTF-8"),
    (b'{"prompt": "\\ud800"}', 400, "not valid JSON"),
    ('{"prompt": "a"}'.encode("utf-16"), 400, "not valid UTF-8"),
    (b'{"prompt": ' + b"[" * 100_000, 400, "recursion"),
    (b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "recursion"),
    (b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
    (b'{"prompt": "a", "temperature": Infinity}', 400, "temperature"),
    (b'{"prompt": "a", "temperature": 1e999}', 400, "temperature"),
    (b'{"prompt": "a", "logit_bias": {"5": NaN}}', 400, "logit_bias"),
]


@pytest.mark.parametrize(("body", "status", "text"), RAW)
def test_bad_bytes(server: LiveServer, body: bytes, status: int, text: str) -> None:
    response = server.client.post(COMPLETION, content=body, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert text in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", ""])
def test_wrong_content_type(server: LiveServer, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    response = server.client.post(COMPLETION, content=b'{"prompt":"a"}', headers=headers)
    check_error(response, 415, "unsupported_media_type", None)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json"])
def test_json_content_types(server: LiveServer, kind: str) -> None:
    headers = {"content-type": kind}
    assert server.client.post(COMPLETION, content=b'{"prompt":"a"}', headers=headers).status_code == 200


def test_wrong_method(server: LiveServer) -> None:
    response = server.client.get(COMPLETION)
    check_error(response, 405, "method_not_allowed", None)
    assert response.headers["allow"] == "POST"


def test_prompts_are_never_quoted(server: LiveServer) -> None:
    """Errors name fields and numbers, not what people wrote."""
    secret = "my secret wish"
    for body in (chat_body(secret * 1000), says({"role": "user", "content": {"x": secret}}), says(secret)):
        message = server.post(CHAT, body).json()["error"]["message"]
        assert secret not in message
    assert secret not in server.complete([secret, 1]).text


def test_no_tokenizer(make_server: Callable[..., LiveServer]) -> None:
    """A model without a tokenizer takes ids; text gets a 400 that says so."""
    server = make_server(None, FakeDispatcher(card(tokenizer_path=None)))
    for path, body, param in (
        (CHAT, chat_body(), "messages"),
        (COMPLETION, text(), "prompt"),
        (COMPLETION, text(prompt=[1], stop="x"), "stop"),
        ("/detokenize", {"tokens": [1]}, "tokens"),
    ):
        check_error(server.post(path, body), 400, "unsupported", param)
    answer = server.complete([1, 2, 3], max_tokens=3, seed=0).json()
    assert answer["choices"][0]["token_ids"] == ids("abc")
    assert answer["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert answer["choices"][0]["text"] == ""
    events = server.stream(COMPLETION, text(prompt=[1, 2, 3], max_tokens=3, seed=0))
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == ids("abc")
    echoed = server.complete([1, 2, 3], max_tokens=1, seed=0, echo=True, logprobs=0).json()["choices"][0]
    assert echoed["logprobs"]["tokens"] == ["token_id:1", "token_id:2", "token_id:3", "token_id:97"]


def test_a_prompt_that_can_never_fit_the_pool(server: LiveServer) -> None:
    """The pool holds 2048 tokens although the model's context is 4096."""
    message = check_error(server.complete("a" * 3000), 400, "context_length_exceeded", "prompt")
    assert "KV cache" in message and "2048" in message
    assert server.complete("a" * 2047, max_tokens=1).status_code == 200
    assert server.complete("a" * 2040).json()["usage"]["completion_tokens"] == 8, "fewer than the default fit"


def test_body_too_large(make_server: Callable[..., LiveServer]) -> None:
    """413 for announced and for streamed bodies; the connection is not used again."""
    server = make_server(ApiConfig(port=0, limits=LimitsConfig(max_body_bytes=1000)))
    response = server.complete("a" * 1000)
    check_error(response, 413, "payload_too_large", None)
    assert response.headers["connection"] == "close"

    def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100

    streamed = server.client.post(COMPLETION, content=pieces(), headers={"content-type": "application/json"})
    check_error(streamed, 413, "payload_too_large", None)
    assert server.complete("a").status_code == 200


def test_others_are_untouched(server: LiveServer) -> None:
    """Bad requests beside a running stream do not disturb it."""
    server.dispatcher.pause_s = 0.001
    with server.client.stream("POST", COMPLETION, json=text(max_tokens=200, seed=0, stream=True)) as stream:
        lines = stream.iter_lines()
        next(lines)
        for path, body, *_ in TABLE[::7]:
            server.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert sum(len(event["choices"][0]["text"]) for event in events) == 199


@pytest.mark.parametrize(
    "head",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    ],
)
def test_broken_http(server: LiveServer, head: bytes) -> None:
    """Answered and closed; the server lives on."""
    with server.raw() as connection:
        connection.sendall(head)
        answer = until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert server.client.get("/live").status_code == 200


def test_pipelined_requests(server: LiveServer) -> None:
    """Two requests in one packet get two answers, in order."""
    one = post_bytes(COMPLETION, json.dumps(text(max_tokens=1, seed=0)).encode())
    two = post_bytes(COMPLETION, json.dumps(text(max_tokens=2, seed=0)).encode(), "connection: close")
    with server.raw() as connection:
        connection.sendall(one + two)
        answer = until_closed(connection)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b'"text":"a"') < answer.index(b'"text":"ab"')
