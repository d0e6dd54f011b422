"""Probes, models, version, the description of the API; logs, settings, and that the door needs no torch."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tokenmill
from tests.api.fakes import RATE, FakeDispatcher, card
from tests.api.live import LiveServer
from tokenmill.api.arguments import FrontendArgs, parse_frontend_args
from tokenmill.api.config import ApiConfig
from tokenmill.api.logs import set_up_logging
from tokenmill.core.errors import ConfigError
from tokenmill.operations.config import OperationsConfig


def test_probes(server: LiveServer) -> None:
    for path, status in (("/live", "live"), ("/ready", "ready"), ("/health", "healthy")):
        response = server.client.get(path)
        assert response.status_code == 200 and response.json()["status"] == status
    assert server.client.get("/version").json() == {"version": tokenmill.__version__}


def test_not_ready_while_loading(server: LiveServer) -> None:
    """503 with reasons, and 503 for requests too; the process is alive and nothing is wrong."""
    server.dispatcher.is_announced = False
    response = server.client.get("/ready")
    assert response.status_code == 503 and response.headers["retry-after"]
    assert response.json() == {"status": "not ready", "reasons": ["no worker has announced itself yet"]}
    assert server.client.get("/live").status_code == 200
    assert server.client.get("/health").status_code == 200
    assert server.client.get("/v1/models").json()["data"] == []
    for body in ({"prompt": "a"}, {"prompt": "a", "model": "bytes"}):
        refused = server.post("/v1/completions", body)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "unavailable"


def test_unhealthy(server: LiveServer) -> None:
    server.dispatcher.unhealthy = ("worker w0: stuck",)
    response = server.client.get("/health")
    assert response.status_code == 503
    assert response.json() == {"status": "unhealthy", "reasons": ["worker w0: stuck"]}


def test_openapi(server: LiveServer) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/metrics"} <= set(paths)
    schema = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "messages" in schema["required"] and "temperature" in schema["properties"]


def test_tokenizer_problems(make_server: Callable[..., LiveServer], tmp_path: Path) -> None:
    """A tokenizer that is not the worker's, or is broken, is our failure: 500, and it is tried again next time."""
    dispatcher = FakeDispatcher(
        card("other", tokenizer_digest="not this"), card("broken", tokenizer_path=str(tmp_path))
    )
    server = make_server(None, dispatcher)
    for model in ("other", "broken"):
        for _ in range(2):
            response = server.complete(model=model)
            assert response.status_code == 500 and "tokenizer" in response.json()["error"]["message"]


@pytest.mark.parametrize("name", ["absent.jinja", "binary.jinja"])
def test_bad_template_file(make_server: Callable[..., LiveServer], tmp_path: Path, name: str) -> None:
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    server = make_server(ApiConfig(port=0, chat_template=str(tmp_path / name)))
    assert "--chat-template" in server.chat().json()["error"]["message"]


def test_template_file_for_another_encoding(make_server: Callable[..., LiveServer], tmp_path: Path) -> None:
    server = make_server(ApiConfig(port=0, chat_template="x"), FakeDispatcher(card(chat_encoding="own")))
    assert "Jinja" in server.chat().json()["error"]["message"]


# -- arguments --


def test_arguments_round_trip(tmp_path: Path) -> None:
    args = FrontendArgs(
        run_dir=tmp_path,
        rate=RATE,
        expected={"w-0": "m"},
        api_config=ApiConfig(port=0, api_key="secret", model_aliases={"a": "m"}),  # type: ignore[arg-type]
        operations_config=OperationsConfig(workers=2),
        slo="ttft=500ms",
        parent_pid=7,
    )
    argv = args.to_argv()
    assert not any("secret" in part for part in argv), "command lines are public"
    assert parse_frontend_args(argv, args.to_env()) == args
    bare = FrontendArgs(tmp_path, RATE, {})
    assert bare.to_env() == {}
    assert parse_frontend_args(bare.to_argv(), {}) == bare


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_frontend_args(["--run-dir=x", "--rate={}", "--expected={}"], {})
    assert caught.value.code == 2 and "--rate" in capsys.readouterr().err


def test_config_names_the_nearest_setting() -> None:
    with pytest.raises(ConfigError, match=r"api\.limits\.max_body_byte.*max_body_bytes"):
        ApiConfig.parse({"limits": {"max_body_byte": 1}}, path="api")


# -- logs --


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("restored_logging")
def test_json_log() -> None:
    stream = io.StringIO()
    set_up_logging(ApiConfig(log_format="json"), stream)
    try:
        raise ValueError("é")
    except ValueError:
        logging.getLogger("x.y").exception("request %s failed", "r1")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("error", "x.y", "request r1 failed")
    assert "ValueError: é" in line["exception"] and line["time"].endswith("Z")


@pytest.mark.usefixtures("restored_logging")
def test_text_log() -> None:
    stream = io.StringIO()
    set_up_logging(ApiConfig(log_level="warning"), stream)
    logging.getLogger("x").info("unseen")
    logging.getLogger("x").warning("seen")
    assert stream.getvalue().endswith("WARNING x: seen\n") and "unseen" not in stream.getvalue()


def test_the_door_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import tokenmill.api.server"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
