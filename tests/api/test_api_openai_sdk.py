"""The real `openai` Python SDK against a live server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from tests.api.fakes import FakeDispatcher, ids
from tests.api.live import LiveServer
from tokenmill.api.config import ApiConfig
from tokenmill.core.errors import OverloadedError, WorkerLostError

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    server.dispatcher.script = lambda request: [*ids("Hello world!"), 0]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "bytes" and model.object == "model" and model.created == 1_700_000_000
    assert model.model_extra is not None and model.model_extra["max_model_len"] == 4096
    assert client.models.retrieve("bytes").id == "bytes"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/absent")
    assert caught.value.code == "model_not_found"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="bytes", messages=HELLO, temperature=0)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "Hello world!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 13
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    cost = answer.usage.model_extra["cost"]
    assert cost["usd"] > 0 and cost["joules"] > 0 and cost["energy_source"] == "modelled"


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="bytes",
        messages=HELLO,  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello world!"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 13
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    """The SDK's own accumulation agrees."""
    with client.chat.completions.stream(model="bytes", messages=HELLO) as stream:  # type: ignore[arg-type]
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello world!"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="bytes", prompt="Say", max_tokens=5, logprobs=2, echo=True)
    choice = answer.choices[0]
    assert choice.text == "SayHello" and choice.finish_reason == "length"
    assert choice.logprobs is not None and choice.logprobs.tokens == list("SayHello")
    pieces = client.completions.create(model="bytes", prompt="Say", max_tokens=5, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "Hello"


def test_chat_logprobs_and_n(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="bytes",
        messages=HELLO,  # type: ignore[arg-type]
        n=3,
        logprobs=True,
        top_logprobs=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert "".join(entry.token for entry in choice.logprobs.content[:-1]) == "Hello world!"
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_stop(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="bytes", messages=HELLO, stop=[" wor", "?"])  # type: ignore[call-overload]
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"


def test_extra_body(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="bytes", prompt="x", max_tokens=3, extra_body={"top_k": 5, "return_token_ids": True}
    )
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["token_ids"] == ids("Hel")


def test_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="bytes", prompt="x", temperature=-1)
    assert caught.value.param == "temperature" and caught.value.code == "invalid_request"
    assert caught.value.request_id


def test_retryable_errors(server: LiveServer, client: openai.OpenAI) -> None:
    """429 and 503 come as the SDK's retryable kinds, with Retry-After; after the error passes a retry succeeds."""
    server.dispatcher.error = OverloadedError("the queue is full: try again")
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="bytes", prompt="x")
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.body["retryable"] is True  # type: ignore[index]

    def recover(response: httpx.Response) -> None:
        server.dispatcher.error = None

    hooks = httpx.Client(event_hooks={"response": [recover]})
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=1, http_client=hooks) as retrying:
        assert retrying.completions.create(model="bytes", prompt="x", max_tokens=1).choices[0].text == "H"


def test_error_in_mid_stream(server: LiveServer, client: openai.OpenAI) -> None:
    """After the first token the status is out: the error is an event, and the SDK raises it."""
    server.dispatcher.error, server.dispatcher.fail_at = WorkerLostError("the worker died: send it again"), 3
    stream = client.chat.completions.create(model="bytes", messages=HELLO, stream=True)  # type: ignore[call-overload]
    text = ""
    with pytest.raises(openai.APIError) as caught:
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "Hel" and caught.value.code == "worker_lost"


def test_api_key(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, api_key="sesame"), FakeDispatcher())  # type: ignore[arg-type]
    base = f"{server.url}/v1"
    with openai.OpenAI(base_url=base, api_key="sesame") as client:
        assert client.models.list().data
    for wrong in ("wrong", "sesam\u00e9"):
        answer = server.client.get("/v1/models", headers={"authorization": f"Bearer {wrong}".encode()})
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    with (
        openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"
    for path in ("/health", "/live", "/ready", "/version", "/metrics"):
        assert server.client.get(path).status_code == 200
    for path in ("/tokenize", "/openapi.json", "/v1/nope"):
        assert server.client.post(path, json={}).status_code == 401
