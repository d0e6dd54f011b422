"""Architectures by name: built-ins, separate packages, refusals."""

from importlib.metadata import EntryPoint

import pytest
import torch

from tests.models.drive import Driver
from tests.tiny import write_tiny_llama
from tokenmill.core import registry as core_registry
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.models import llama
from tokenmill.models.registry import MODELS, load_model


def build_scaled(checkpoint, options):
    """What a separate package would register: a Llama whose config calls it by another name."""
    checkpoint.config["architectures"] = ["LlamaForCausalLM"]
    return llama.build(checkpoint, options)


def test_a_separate_package_adds_a_model(tmp_path, monkeypatch, token_ids):
    point = EntryPoint("OtherForCausalLM", "tests.models.test_model_registry:build_scaled", "tokenmill.models")
    monkeypatch.setattr(core_registry, "entry_points", lambda group: [point] if group == point.group else [])
    other = write_tiny_llama(tmp_path / "other", architectures=["OtherForCausalLM"], model_type="other")
    plain = write_tiny_llama(tmp_path / "plain")
    assert "OtherForCausalLM" in MODELS.names()
    loaded = load_model(other, dtype="float32", deterministic=True)
    assert loaded.architecture == "other"
    logits = [
        Driver(m.model, num_seqs=1, max_len=64).step({0: token_ids[:20]})
        for m in (loaded, load_model(plain, dtype="float32", deterministic=True))
    ]
    assert torch.equal(*logits)


def test_an_unknown_architecture_is_refused_with_what_is_possible(tmp_path):
    folder = write_tiny_llama(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(CheckpointError, match=r"config.architectures\[0\]='MambaForCausalLM'.*LlamaForCausalLM"):
        load_model(folder)


@pytest.mark.parametrize("names", ["LlamaForCausalLM", [3], {}])
def test_malformed_architectures_are_refused(tmp_path, names):
    with pytest.raises(CheckpointError, match=r"config.architectures is missing or not a list"):
        load_model(write_tiny_llama(tmp_path, architectures=names, model_type=None))


def test_settings_of_another_model_are_refused(tmp_path):
    folder = write_tiny_llama(tmp_path)
    with pytest.raises(ConfigError, match="index_cache_dtype means nothing to this model: possible: kv_cache_dtype"):
        load_model(folder, extra={"index_cache_dtype": "fp4"})


def test_kernels_are_visible(tmp_path):
    folder = write_tiny_llama(tmp_path)
    for options, name in (({"deterministic": True}, "reference"), ({"backend": "cpu"}, "cpu")):
        kernels = load_model(folder, **options).kernels
        assert {choice.name for choice in kernels.values()} == {name}
        assert {"linear", "attention"} <= set(kernels)
