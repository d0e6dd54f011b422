"""However the tokens are cut, batched, cached or rebuilt: the same bits (reference kernels, float32)."""

from __future__ import annotations

import random

import pytest
import torch

from tests.deepseek_v4.conftest import load_golden_model
from tests.deepseek_v4.harness import Harness, Seq
from tests.deepseek_v4.test_v4_goldens import same_bits
from tests.deepseek_v4.tiny import random_tensors, v4_json, write_checkpoint
from tokenmill.models.deepseek_v4.model import DeepseekV4

FORMATS: list[dict[str, str]] = [
    {},
    {"kv_cache_dtype": "fp8_e4m3", "index_cache_dtype": "fp4"},
    {"kv_cache_dtype": "bf16", "index_cache_dtype": "fp8_e4m3"},
]


def tokens(count: int, seed: int = 0) -> list[int]:
    return [0, *random.Random(seed).choices(range(2, 256), k=count - 1)]


@pytest.fixture(scope="module", params=FORMATS, ids=["fp32", "fp8+fp4", "bf16+fp8"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DeepseekV4:
    config = v4_json(compress_ratios=[4, 32, 128, 4, 0])
    folder = write_checkpoint(tmp_path_factory.mktemp("v4"), config, random_tensors(config, 5))
    return load_golden_model(folder, tuple(request.param.items()))


def run_ragged(harness: Harness, prompts: list[list[int]], seed: int) -> list[torch.Tensor]:
    """Every prompt advances by random chunks beside random others."""
    order = random.Random(seed)
    seqs = [harness.start() for _ in prompts]
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    while True:
        left = [i for i, prompt in enumerate(prompts) if seqs[i].num_computed < len(prompt)]
        if not left:
            break
        chosen = order.sample(left, order.randint(1, len(left)))
        sizes = {i: order.choice([1, 1, 2, 5, 31, 90]) for i in chosen}
        items = [(seqs[i], prompts[i][seqs[i].num_computed :][: sizes[i]]) for i in chosen]
        for i, logits in zip(chosen, harness.step(items), strict=True):
            rows[i].append(logits)
    for seq in seqs:
        harness.finish(seq)
    return [torch.cat(parts) for parts in rows]


def test_ragged_batches_equal_solo_runs(model: DeepseekV4) -> None:
    """S68 at model level; transformers gets left-padded rows wrong, here nothing is padded."""
    harness = Harness(model)
    prompts = [tokens(n, seed) for seed, n in enumerate((1, 3, 4, 127, 128, 129, 200, 270))]
    solo = [harness.prefill(harness.start(), prompt) for prompt in prompts]
    for got, want in zip(run_ragged(Harness(model, seed=1), prompts, seed=2), solo, strict=True):
        assert same_bits(got, want)


def test_warm_equals_cold_at_every_boundary(model: DeepseekV4) -> None:
    """S14, S15: a hit is possible at every 128 tokens, and the continuation has the bits of a cold run, also when
    the prompt is exactly one token longer than the hit."""
    ids = tokens(390)
    harness = Harness(model, keeps_windows=True)
    base = harness.start()
    want = harness.prefill(base, ids)
    for boundary in (128, 256, 384):
        for length in (boundary + 1, boundary + 4, len(ids)):
            warm = harness.fork(base, boundary)
            assert same_bits(harness.prefill(warm, ids[boundary:length]), want[boundary:length])
            harness.finish(warm)


def test_a_hit_reads_only_what_it_shares(model: DeepseekV4) -> None:
    """S16, pattern A, B, A: memory that A's windows held is reused by B in between; only shared blocks are read."""
    a, b = tokens(300, 1), tokens(310, 2)
    harness = Harness(model, num_blocks=6, keeps_windows=True)
    first = harness.start()
    want = harness.prefill(first, a)
    kept = harness.fork(first, 256)
    harness.finish(first)
    other = harness.start()
    harness.prefill(other, b)
    harness.finish(other)
    assert same_bits(harness.prefill(kept, a[256:]), want[256:])


def test_window_blocks_are_freed(model: DeepseekV4) -> None:
    """Pool use of a sequence: window and state groups hold at most two blocks however long it is."""
    harness = Harness(model)
    seq = harness.start()
    for _ in range(6):
        harness.prefill(seq, tokens(100))
        held = {name: len(blocks) for name, blocks in seq.blocks.items()}
        assert all(held[name] <= 2 for name in ("window", "csa_state", "hca_state", "mtp_window")), held
    assert held["csa"] == held["hca"] == held["indexer"] == 5


def test_rebuilt_windows_have_the_bits_of_kept_ones(model: DeepseekV4) -> None:
    """The recompute policy: entries stay, windows and states are computed again from `rebuild_tokens` before."""
    ids = tokens(530, 3)
    harness = Harness(model, keeps_windows=True)
    base = harness.start()
    want = harness.prefill(base, ids)
    rebuild = max(g.rebuild_tokens or 0 for g in harness.groups if g.is_required)
    boundary = 512
    resume = (boundary - rebuild) // 128 * 128
    assert resume > 0, f"{rebuild} tokens"
    entries = [cache.clone() for name in ("csa", "hca", "indexer") for cache in harness.caches[name]]
    warm = harness.rebuild_fork(base, boundary, resume)
    for start in range(resume, boundary, 50):
        harness.step([(warm, ids[start : min(start + 50, boundary)])], protected=[boundary])
    after = [cache for name in ("csa", "hca", "indexer") for cache in harness.caches[name]]
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(entries, after, strict=True))
    got = harness.step([(warm, ids[boundary:])], protected=[boundary])[0]
    assert same_bits(got, want[boundary:])


def test_states_are_a_function_of_the_tokens(model: DeepseekV4) -> None:
    """Window rows, entries and states after 1..300 tokens have the same bytes whatever the chunks."""
    ids = tokens(300, 4)
    one, other = Harness(model, num_blocks=12), Harness(model, num_blocks=12, seed=9)
    a, b = one.start(), other.start()
    for stop in (1, 3, 4, 5, 63, 64, 127, 128, 129, 131, 132, 256, 290):
        one.prefill(a, ids[a.num_computed : stop])
        other.prefill(b, ids[b.num_computed : stop], 7)
        assert_same_bytes(one, a, other, b)


def assert_same_bytes(one: Harness, a: Seq, other: Harness, b: Seq) -> None:
    left, right = one.valid_bytes(a), other.valid_bytes(b)
    for name, tensors in left.items():
        if name == "mtp_window":  # written by mtp_forward only
            continue
        for i, (x, y) in enumerate(zip(tensors, right[name], strict=True)):
            assert torch.equal(x.view(torch.uint8), y.view(torch.uint8)), f"{name}[{i}] after {a.num_computed} tokens"


def test_decode_far_into_a_sequence_has_the_bits_of_prefill(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hundreds of chosen entries and more than 32 HCA entries: several padded widths side by side in one batch."""
    config = v4_json(
        num_hidden_layers=2,
        compress_ratios=[4, 32],
        num_nextn_predict_layers=0,
        index_topk=200,
        sliding_window=17,
        num_attention_heads=6,
    )
    folder = write_checkpoint(tmp_path_factory.mktemp("far"), config, random_tensors(config, 8))
    harness, ids = Harness(load_golden_model(folder)), tokens(1130, 6)
    want = harness.prefill(harness.start(), ids)
    long, short = harness.start(), harness.start()
    harness.prefill(long, ids[:1000], 300)
    harness.prefill(short, ids[:60])
    while long.num_computed < len(ids):
        step = 1 if long.num_computed < 1034 else 37
        rows = harness.step([(long, ids[long.num_computed :][:step]), (short, ids[short.num_computed :][:1])])
        for seq, got in zip((long, short), rows, strict=True):
            assert same_bits(got, want[seq.num_computed - len(got) : seq.num_computed]), seq.num_computed
