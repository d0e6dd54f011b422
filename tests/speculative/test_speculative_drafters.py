"""Drafters with checkpoints of their own: small models and DFlash. Same text as without them, refused where wrong."""

from __future__ import annotations

import pytest
import torch

from tests.speculative.conftest import PATHS, VOCAB, engine_of, prompt_of, request, run
from tests.speculative.dflash_direct import direct_hidden, write_drafter
from tests.tiny import write_tiny_llama
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.engine.speculative.conformance import check_proposer
from tokenmill.models.dflash.config import GROUP, spread_layers

LIMITS = {"max_num_seqs": 4, "max_num_batched_tokens": 24}


def method(name, path, k=4, **more):
    return {"method": name, "model": str(path), "num_speculative_tokens": k, "adaptive": False, **more}


@pytest.fixture(scope="session")
def drafter(tmp_path_factory):
    return write_drafter(tmp_path_factory.mktemp("dflash") / "drafter")


# -- draft model --


@pytest.mark.parametrize("path", PATHS)
def test_draft_model_conformance(checkpoint, tmp_path, path):
    draft = write_tiny_llama(tmp_path / "draft", seed=9, vocab_size=VOCAB, num_layers=1)
    check_proposer(
        engine_of(checkpoint, None, path, **LIMITS),
        engine_of(checkpoint, method("draft_model", draft), path, **LIMITS),
        VOCAB,
    )


@pytest.mark.parametrize("path", PATHS)
def test_the_target_as_its_own_draft_is_always_right(checkpoint, path):
    """S34: acceptance is 100 %: through chunks, rejected bonus rows, prefix hits and mixed batches."""
    engine = engine_of(checkpoint, method("draft_model", checkpoint), path, max_num_batched_tokens=24)
    for _ in range(2):
        requests = [request(f"r{i}", prompt_of(i, 5 + 19 * i), 30) for i in range(4)]
        outputs = run(engine, *requests)
        assert sum(out.num_rejected for out in outputs.values()) == 0
        assert all(out.num_drafts > 10 for out in outputs.values())
    assert engine._scheduler.counters.prefix_hits > 0


def test_drafts_are_drawn_and_kept_by_rejection_sampling(checkpoint):
    """An equal drafter's draws are always kept, also at temperature > 0."""
    engine = engine_of(checkpoint, method("draft_model", checkpoint, draft_sample_method="probabilistic"))
    outputs = run(engine, *(request(f"r{i}", prompt_of(i, 9), 24, seed=i, temperature=1.0) for i in range(3)))
    assert sum(out.num_rejected for out in outputs.values()) == 0
    again = engine_of(checkpoint, method("draft_model", checkpoint, draft_sample_method="probabilistic"))
    repeat = run(again, *(request(f"r{i}", prompt_of(i, 9), 24, seed=i, temperature=1.0) for i in range(3)))
    assert {name: out.ids for name, out in repeat.items()} == {name: out.ids for name, out in outputs.items()}


# -- DFlash --


@pytest.mark.parametrize("temperature_of_engine", [{}, {"method": "auto"}])
def test_dflash_conformance(checkpoint, drafter, temperature_of_engine):
    speculative = {**method("dflash", drafter), **temperature_of_engine}
    check_proposer(engine_of(checkpoint, **LIMITS), engine_of(checkpoint, speculative, **LIMITS), VOCAB)


def watch_hidden(engine):
    """Every block the drafter fills: (tokens known, first context position, hidden states of its whole block)."""
    seen, proposer = [], engine.runner._speculator.proposer
    draft = proposer._drafter.draft

    def watched(embedded, starts, context, caches):
        hidden = draft(embedded, starts, context, caches)
        seen.extend(zip(starts, [first for first, _ in context], embedded, hidden, strict=True))
        return hidden

    proposer._drafter.draft = watched
    return seen


def target_features(checkpoint, ids, layers):
    """Residual stream after each of `layers`, from one pass over all of `ids`."""
    from tokenmill.core.step import BlockTable
    from tokenmill.models.features import Features
    from tokenmill.models.ragged import ragged_batch
    from tokenmill.models.registry import load_model

    model = load_model(checkpoint, dtype="float32", deterministic=True).model
    num_blocks = -(-len(ids) // 16)
    caches = model.allocate_caches({"full": num_blocks}, 16)
    batch = ragged_batch([ids], [0], {"full": [BlockTable(0, tuple(range(num_blocks)))]}, 16)
    with torch.inference_mode():
        return model, model.forward_with_features(batch, caches, Features(layers))[1]


def test_dflash_forward_equals_its_definition(checkpoint, drafter):
    """S33: against an implementation from the definition, 1e-4: chunked context, decode, and warm from the cache."""
    engine = engine_of(checkpoint, method("dflash", drafter), max_num_batched_tokens=20)
    seen = watch_hidden(engine)
    one = request("a", prompt_of(1, 40), 12)
    out = run(engine, one)["a"]
    again = run(engine, request("b", [*prompt_of(1, 40), *out.ids[:1]], 8))["b"]
    assert again.num_cached == 32
    tokens = [*prompt_of(1, 40), *out.ids]
    _, features = target_features(checkpoint, tokens, (0, 1))
    starts = [start for start, *_ in seen]
    assert len(seen) > 12 and min(starts) == 40
    for start, first, embedded, hidden in seen[:3] + seen[-2:]:
        assert first == 0
        want = direct_hidden(drafter, features[:start], embedded)
        assert (hidden.double() - want).abs().max() < 1e-4, start


def test_features_are_the_output_after_the_layer(checkpoint):
    """S33: index i means after layer i; the last layer's output, normalised, is what the head takes."""
    model, features = target_features(checkpoint, prompt_of(2, 9), (1,))
    weights = model._weights
    normed = features / torch.sqrt(features.pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps) * weights.norm
    from tokenmill.core.step import BlockTable
    from tokenmill.models.ragged import ragged_batch

    batch = ragged_batch([prompt_of(2, 9)], [0], {"full": [BlockTable(0, (0,))]}, 16)
    with torch.inference_mode():
        hidden = model.forward(batch, model.allocate_caches({"full": 1}, 16))
    assert torch.allclose(hidden, normed, atol=1e-5)


def test_a_hit_that_the_draft_group_misses_still_drafts(checkpoint, drafter):
    """Context rows begin where they exist; the text does not change."""
    engine = engine_of(checkpoint, method("dflash", drafter))
    prompt = prompt_of(5, 50)
    want = run(engine_of(checkpoint), request("a", prompt, 12))["a"].said
    run(engine, request("first", prompt, 2))
    engine._scheduler.kv.pools[GROUP].clear_cache()
    seen = watch_hidden(engine)
    out = run(engine, request("a", prompt, 12))["a"]
    assert out.said == want and out.num_cached == 48
    assert {first for _, first, *_ in seen} == {48}


def test_a_smaller_vocabulary_is_mapped(checkpoint, tmp_path):
    """S34: the drafter's own head is used and its ids go through the table."""
    ids = torch.arange(3, 253, 5)
    head = torch.randn(len(ids), 64, generator=torch.Generator().manual_seed(1))
    extra = {"lm_head.weight": head, "d2t": ids - torch.arange(len(ids))}
    small = write_drafter(tmp_path / "small", extra=extra)
    engine = engine_of(checkpoint, method("dflash", small))
    drafts, proposer = [], engine.runner._speculator.proposer
    propose = proposer.propose
    proposer.propose = lambda wishes: [drafts.append(p.token_ids) or p for p in propose(wishes)]
    seen = watch_hidden(engine)
    out = run(engine, request("a", prompt_of(1, 20), 12))["a"]
    assert out.said == run(engine_of(checkpoint), request("a", prompt_of(1, 20), 12))["a"].said
    assert drafts and all(token in ids.tolist() for block in drafts for token in block)
    best = ids[(seen[0][3][1:5] @ head.T).argmax(-1)].tolist()
    assert drafts[0] == tuple(best)


def test_layers_are_spread_where_a_checkpoint_does_not_say():
    assert spread_layers(36, 5) == [1, 9, 17, 25, 33]
    assert spread_layers(6, 1) == [3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_target_layers": 4}, "target with layers 4"),
        ({"vocab_size": 300}, "vocab_size 300"),
        ({"dflash_config": {"mask_token_id": 256, "target_layer_ids": [0, 1]}}, "mask_token_id=256"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2]}}, "target_layer_ids"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
    ],
)
def test_drafters_that_do_not_fit_are_refused(checkpoint, tmp_path, changes, message):
    wrong = write_drafter(tmp_path / "wrong", **changes)
    with pytest.raises(CheckpointError, match=message):
        engine_of(checkpoint, method("dflash", wrong))


@pytest.mark.parametrize(
    ("speculative", "path", "message"),
    [
        ({"method": "mtp"}, "reference", "needs a model with MTP blocks"),
        ({"method": "dflash"}, "reference", "needs a checkpoint"),
        ({"method": "draft_model"}, "reference", "needs a checkpoint"),
        ({"method": "ngram", "model": "x"}, "reference", "takes no model"),
        ({"method": "eagle"}, "reference", "'eagle' is unknown"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "reference", "num_speculative_tokens"),
        ({"method": "ngram", "prompt_lookup_min": 9}, "reference", "prompt_lookup_min=9 exceeds"),
        ("dflash-native", "native", "shows no layer outputs"),
        ("dflash-long", "reference", "at most 4"),
        ("vocabulary", "reference", "vocabulary of 300"),
        ("context", "reference", "made for 128 tokens"),
    ],
)
def test_configurations_that_cannot_work_are_refused(checkpoint, drafter, tmp_path, speculative, path, message):
    made = {
        "dflash-native": lambda: method("dflash", drafter),
        "dflash-long": lambda: method("dflash", drafter, 5),
        "vocabulary": lambda: method("draft_model", write_tiny_llama(tmp_path / "v", vocab_size=300)),
        "context": lambda: method("draft_model", write_tiny_llama(tmp_path / "c", vocab_size=VOCAB, max_model_len=128)),
    }
    wanted = made[speculative]() if isinstance(speculative, str) else speculative
    with pytest.raises(ConfigError, match=message):
        engine_of(checkpoint, wanted, path)
