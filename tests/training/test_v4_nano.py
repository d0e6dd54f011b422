"""The shipped model: what it is made of, equal logits in transformers, served without a network, its card is true."""

import asyncio
import json
import platform
import warnings
from pathlib import Path

import aiohttp
import pytest
import torch
from safetensors import safe_open

from tests.deepseek_v4.harness import Harness
from tokenmill.bench.local_server import local_server
from tokenmill.bench.quality import QualityBench, run_quality_bench
from tokenmill.models.deepseek_v4.config import AttentionKind, DeepseekV4Config
from tokenmill.models.registry import load_model
from tokenmill.models.store import resolve_model
from tokenmill.text.tokenizer import Tokenizer

FOLDER = resolve_model("v4-nano")
TEXTS = (
    "import os\n\n\ndef sizes(path):\n    return {name: os.path.getsize(name) for name in os.listdir(path)}\n",
    "Once upon a time there was a baker named Nora. Nora lived near the old mill with a little fox. " * 12,
)


@pytest.fixture(scope="module")
def config() -> DeepseekV4Config:
    return DeepseekV4Config.from_dict(json.loads((FOLDER / "config.json").read_text()))


def test_it_has_every_part_of_the_architecture(config: DeepseekV4Config) -> None:
    kinds = [config.layers_of(kind) for kind in AttentionKind]
    assert all(kinds), kinds
    assert config.hc_mult == 4 and config.num_nextn_predict_layers == 1 and sum(config.hash_layers) == 1
    assert config.n_routed_experts >= 8 and config.num_experts_per_tok == 2
    assert [n % 4 for n in (config.num_attention_heads, config.o_groups, config.n_routed_experts)] == [0, 0, 0]
    assert config.max_position_embeddings >= 8192
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 20e6


def test_hub_names_and_types() -> None:
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert {"embed.weight", "head.weight", "mtp.0.e_proj.weight", "layers.0.ffn.gate.tid2eid"} <= types.keys()
    assert types["layers.2.attn.wq_a.weight"] == "BF16" and types["layers.0.ffn.gate.tid2eid"] == "I64"


def test_tokenizer_covers_the_output_head(config: DeepseekV4Config) -> None:
    tokenizer = Tokenizer.load(FOLDER)
    assert tokenizer.vocab_size == config.vocab_size
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))


@pytest.mark.requires_transformers
def test_transformers_gives_the_same_logits() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about the yarn factor of a small context
        theirs = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()
    their_tokenizer, tokenizer = AutoTokenizer.from_pretrained(FOLDER), Tokenizer.load(FOLDER)
    ours = load_model(FOLDER, dtype="float32", deterministic=True).model
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert their_tokenizer(text, add_special_tokens=False).input_ids == ids[1:]
        with torch.no_grad():
            wanted = theirs(torch.tensor([ids]), use_cache=False).logits[0]
        harness = Harness(ours, num_blocks=16)
        got = ours.compute_logits(ours.forward(harness.batch([(harness.start(), ids)]), harness.caches))
        torch.testing.assert_close(got, wanted, atol=3e-3, rtol=0)


# -- served --


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, and every way to fetch leads nowhere."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("PIP_INDEX_URL", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.ci
def test_it_is_served_without_a_network(no_network: None, tmp_path: Path) -> None:
    body = {"model": "v4-nano", "temperature": 0, "max_tokens": 60, "messages": [{"role": "user", "content": "Hello!"}]}

    async def ask(url: str) -> dict:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    with local_server(["v4-nano", "--set", "engine.num_threads=1"], is_quiet=True) as url:
        answer = asyncio.run(ask(url))
    message = answer["choices"][0]["message"]
    assert "Hello" in message["content"] and message["reasoning_content"], answer
    assert answer["choices"][0]["finish_reason"] == "stop" and not (tmp_path / "cache" / "models").exists()


# -- the card --


def test_the_card_tells_what_was_measured() -> None:
    measured, card = json.loads((FOLDER / "quality.json").read_text()), (FOLDER / "README.md").read_text()
    for domain, perplexity in measured["perplexity"].items():
        assert f"| {domain} | {measured['nats_per_token'][domain]:.3f} | {perplexity:.2f} |" in card
    hard = measured["hard_domain"]
    for value in (measured["mtp_acceptance_length"]["1"][name] for name in ("overall", hard)):
        assert f"| {value:.3f} |" in card
    assert f"| {measured['tool_call_validity']:.3f} |" in card


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_the_command_agrees_with_the_card() -> None:
    """Kernels of another machine round otherwise: a little in perplexity, now and then another token."""
    card = json.loads((FOLDER / "quality.json").read_text())
    bench = QualityBench(num_drafts=(1,), distances=(256,), engine={"num_threads": 1})
    measured = run_quality_bench(bench, lambda line: None)
    same_library = platform.python_version().startswith("3.11.")  # of which the hard domain is made
    for domain in card["perplexity"].keys() - (() if same_library else {card["hard_domain"]}):
        assert measured["perplexity"][domain] == pytest.approx(card["perplexity"][domain], rel=0.02), domain
        lengths = [result["mtp_acceptance_length"]["1"][domain] for result in (measured, card)]
        assert lengths[0] == pytest.approx(lengths[1], abs=0.15), domain
    assert measured["tool_call_validity"] == pytest.approx(card["tool_call_validity"], abs=0.05)
    assert measured["copy_accuracy"]["256"] == pytest.approx(card["copy_accuracy"]["256"], abs=0.05)
