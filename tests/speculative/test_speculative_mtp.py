"""MTP drafting of DeepSeek V4 on the golden checkpoints: same text, and drafts that do not depend on how it came."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.deepseek_v4.harness import Harness
from tests.speculative.conftest import prompt_of, request, run
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.load import load_engine
from tokenmill.engine.speculative.conformance import check_proposer
from tokenmill.engine.speculative.depth import FixedDepth
from tokenmill.engine.speculative.mtp import GROUP
from tokenmill.models.registry import load_model

GOLDEN = Path(__file__).parents[1] / "data" / "goldens" / "tiny-flash"
MTP = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
PATHS = {"reference": {"deterministic": True}, "native": {"dtype": "float32"}}


@pytest.fixture(scope="module", params=PATHS)
def make_engine(request):
    def make(speculative=None, **settings):
        config = {"max_model_len": 1024, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**26, "num_threads": 1}
        config |= {**PATHS[request.param], **settings, "speculative_config": speculative}
        return load_engine(GOLDEN, EngineConfig.parse(config), name="golden")

    make.plain = make()
    make.vocab_size = make.plain.card.vocab_size
    return make


class Asleep(FixedDepth):
    is_dormant = True

    def __init__(self):
        super().__init__(0)


def watch(engine):
    """Every proposal: (tokens known, drafts)."""
    seen, proposer = [], engine.runner._speculator.proposer
    propose = proposer.propose

    def watched(wishes):
        proposals = propose(wishes)
        seen.extend((tuple(w.token_ids), p.token_ids) for w, p in zip(wishes, proposals, strict=True))
        return proposals

    proposer.propose = watched
    return seen


@pytest.mark.parametrize(
    "method", [MTP, pytest.param({**MTP, "num_speculative_tokens": 1}, marks=pytest.mark.ci), "auto"]
)
def test_conformance(make_engine, method):
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 100}
    check_proposer(make_engine(**limits), make_engine(method, **limits), make_engine.vocab_size)


def direct_drafts(model, ids, num_drafts):
    """The drafts behind `ids` from first principles: the trunk over all of them, the block over all of them, fed on."""
    harness = Harness(model)
    seq = harness.start()
    batch = harness.batch([(seq, ids)])
    with torch.inference_mode():
        streams = model.forward_streams(batch, harness.caches)[:-1]
        seq.num_computed = 0
        known = harness.batch([(seq, ids[:-1])])
        streams = model.mtp_forward(known, harness.caches, streams, torch.tensor(ids[1:]))[-1:]
        drafts = [int(model.mtp_logits(streams).argmax())]
        while len(drafts) < num_drafts:
            seq.num_computed = len(ids) - 1 + len(drafts) - 1
            batch = harness.batch([(seq, drafts[-1:])])
            streams = model.mtp_forward(batch, harness.caches, streams, torch.tensor(drafts[-1:]))
            drafts.append(int(model.mtp_logits(streams).argmax()))
    return tuple(drafts)


def test_drafts_are_those_of_a_direct_computation(make_engine):
    """S33: through chunked prefill, decode, and fed-back streams, at several positions across a block boundary."""
    model = load_model(GOLDEN, dtype="float32", deterministic=True, extra={"mtp": "on"}).model
    engine = make_engine(MTP, max_num_batched_tokens=50)
    seen = watch(engine)
    run(engine, request("a", prompt_of(4, 120), 16, ignore_eos=True))
    assert len(seen) > 10
    for ids, drafts in seen[::4]:
        assert drafts == direct_drafts(model, list(ids), 3)[: len(drafts)], len(ids)


def drafts_of(engine, *requests, **how):
    seen = watch(engine)
    run(engine, *requests, **how)
    return dict(seen)


def test_drafts_do_not_depend_on_chunks_hits_or_company(make_engine):
    """The draft cache survives chunked prefill, prefix hits and mixed batches: same drafts behind the same tokens."""
    one = request("a", prompt_of(7, 300), 24, ignore_eos=True)
    want = drafts_of(make_engine(MTP, max_num_batched_tokens=512), one)
    chunked = make_engine(MTP, max_num_batched_tokens=64)
    others = [request(f"o{i}", prompt_of(20 + i, 10 + 40 * i), 30, ignore_eos=True) for i in range(3)]
    got = drafts_of(chunked, *others, one)
    assert want.items() <= got.items()
    warm = drafts_of(chunked, request("again", prompt_of(7, 300), 24, ignore_eos=True))
    assert warm == want
    assert chunked._scheduler.counters.prefix_hits >= 256


def test_a_hit_whose_next_token_differs_misses_the_draft_rows(make_engine):
    """The row at a block's last position depends on the token behind it: rows of another continuation are not used."""
    engine = make_engine(MTP)
    base = prompt_of(9, 256)
    run(engine, request("a", [*base, 5, 6], 8, ignore_eos=True))
    seen = {}
    proposer = engine.runner._speculator.proposer
    observe = proposer.observe

    def watched(step):
        for one in step.sequences:
            seen.setdefault(one.request_id, one.block_tables[GROUP].first_block)
        observe(step)

    proposer.observe = watched
    run(engine, request("same", [*base, 5, 9], 4, ignore_eos=True), request("other", [*base, 7, 9], 4, ignore_eos=True))
    assert seen["other"] == 2, "starts at the boundary, without rows of before"
    assert seen["same"] < 2, "takes over the rows of the window"


def test_preempted_sequences_draft_again(make_engine):
    requests = [request(f"r{i}", prompt_of(i, 100 + 40 * i), 20, ignore_eos=True) for i in range(3)]
    want = run(make_engine.plain, *requests)
    engine = make_engine(MTP, max_num_batched_tokens=64)
    got = run(engine, *requests, preempt_at=frozenset((3, 9, 14, 20)))
    assert engine.stats().num_preemptions_total > 0
    for name, out in got.items():
        assert out.said == want[name].said
        assert out.num_drafts > 10


def test_after_a_lapse_rows_begin_at_the_next_block(make_engine):
    """Caches that were not kept up to date are never read: drafting goes on behind the next block boundary."""
    engine = make_engine(MTP)
    one = request("a", prompt_of(3, 100), 60, ignore_eos=True)
    want = run(make_engine.plain, one)["a"].said
    seen = watch(engine)
    engine.add(one)
    ids = []
    while engine.has_work():
        is_dormant = 4 <= len(ids) < 12
        engine._scheduler._depth = Asleep() if is_dormant else FixedDepth(3)
        for delta in engine.step():
            ids.extend(delta.token_ids)
    assert ids == want[0]
    drafted = [len(known) for known, drafts in seen if drafts]
    assert min(drafted) <= 104 and not any(116 <= n < 129 for n in drafted) and max(drafted) >= 129
