"""DeepSeek V4 against golden vectors: logits, choices and traces that another implementation computed."""

from __future__ import annotations

import pytest
import torch

from tests.deepseek_v4.conftest import PATHS, Golden
from tests.deepseek_v4.harness import Harness
from tokenmill.models.deepseek_v4.config import kind_of_ratio
from tokenmill.models.deepseek_v4.model import Trace

TOLERANCE = 1e-3  # typical 3e-5, logits have a standard deviation of about 2


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape, f"{tuple(got.shape)} instead of {tuple(want.shape)}"
    return (got - want).abs().max().item() if want.numel() else 0.0


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.mark.parametrize("path", PATHS)
def test_golden_prefill_and_greedy(golden: Golden, path: str) -> None:
    """All prompts: prefilled one by one, then continued together in one ragged batch."""
    harness = Harness(golden.model(path), num_blocks=48)
    seqs, last = [], []
    for length in golden.lengths:
        seqs.append(harness.start())
        logits = harness.prefill(seqs[-1], golden.ids(length))
        last.append(logits)
        name = f"prompt_{length}."
        rows = golden.reference[name + "rows"].long()
        assert worst(logits[rows], golden.reference[name + "logits"]) < TOLERANCE, name
        assert torch.equal(logits.argmax(-1), golden.reference[name + "argmax"].long()), name
        assert worst(logits.logsumexp(-1), golden.reference[name + "logsumexp"]) < TOLERANCE, name
    greedy = harness.greedy(seqs, last, 32)
    for length, ids in zip(golden.lengths, greedy, strict=True):
        assert ids == golden.reference[f"prompt_{length}.greedy_ids"].tolist(), f"prompt_{length}"


@pytest.mark.parametrize("path", PATHS)
def test_golden_greedy_logits(golden: Golden, path: str) -> None:
    """The logits behind the greedy choices, decoded one token at a time."""
    length = golden.lengths[-2]
    name = f"prompt_{length}."
    harness = Harness(golden.model(path))
    seq, ids = harness.start(), golden.reference[name + "greedy_ids"].tolist()
    rows = [harness.prefill(seq, golden.ids(length))[-1], *harness.prefill(seq, ids[:-1], 1)]
    wanted = golden.reference[name + "greedy_rows"].tolist()
    got = torch.stack([rows[i] for i in wanted])
    assert worst(got, golden.reference[name + "greedy_logits"]) < TOLERANCE


@pytest.mark.parametrize("path", PATHS)
def test_golden_chunks_have_the_bits_of_the_whole_prompt(golden: Golden, path: str) -> None:
    """Prefill in chunks of 1, 3, 64, 100 and 128, all of them side by side in one ragged batch, against one prefill."""
    ids = golden.ids(300)
    harness = Harness(golden.model(path))
    want = harness.prefill(harness.start(), ids)
    lengths = {1: 140, 3: 300, 64: 300, 100: 300, 128: 300}
    seqs = {chunk: harness.start() for chunk in lengths}
    got: dict[int, list[torch.Tensor]] = {chunk: [] for chunk in lengths}
    while live := [chunk for chunk in lengths if seqs[chunk].num_computed < lengths[chunk]]:
        here = [(seqs[c], ids[seqs[c].num_computed : lengths[c]][:c]) for c in live]
        for chunk, logits in zip(live, harness.step(here), strict=True):
            got[chunk].append(logits)
    for chunk, length in lengths.items():
        assert same_bits(torch.cat(got[chunk]), want[:length]), f"chunks of {chunk}"


@pytest.mark.parametrize("path", PATHS)
def test_golden_mtp(golden: Golden, path: str) -> None:
    """MTP logits from the uncollapsed streams at t and the token at t + 1; whole, and in chunks to the bit."""
    model = golden.model(path)
    for length in (5, 129):
        ids = golden.ids(length)
        results = []
        for chunk in (length - 1, 3):
            harness, seq = Harness(model), None
            seq = harness.start()
            parts = []
            for i in range(0, length - 1, chunk):
                here = ids[i : min(i + chunk, length - 1)]
                batch = harness.batch([(seq, here)])
                streams = model.forward_streams(batch, harness.caches)
                model.commit(batch, harness.caches, [len(here)])
                next_ids = torch.tensor(ids[i + 1 : i + 1 + len(here)])
                parts.append(model.mtp_logits(model.mtp_forward(batch, harness.caches, streams, next_ids)))
                seq.token_ids += here
                seq.num_computed += len(here)
            results.append(torch.cat(parts))
        want = golden.reference[f"mtp_{length}.logits"]
        assert worst(results[0][-len(want) :], want) < TOLERANCE
        assert same_bits(results[1], results[0])


@pytest.mark.parametrize("path", PATHS)
def test_golden_traces(golden: Golden, path: str) -> None:
    """Streams after every layer, chosen entries, window rows and compressed entries after 300 tokens."""
    model, reference = golden.model(path), golden.reference
    ratios = model.config.compress_ratios
    for length in (5, 300):
        harness, trace = Harness(model, keeps_windows=True), Trace()
        seq = harness.start()
        batch = harness.batch([(seq, golden.ids(length))])
        model.forward_streams(batch, harness.caches, trace)
        for i, ratio in enumerate(ratios):
            want = reference[f"trace_{length}.streams_layer_{i}"]
            assert worst(trace.streams[i][-len(want) :], want) < TOLERANCE, f"streams after layer {i}"
            if length == 5:
                continue
            want = reference[f"trace_300.cache_window_layer_{i}"]
            rows = harness.caches["window"][i][seq.blocks["window"]].flatten(0, 1)[:300]
            assert worst(rows[-len(want) :], want) < TOLERANCE, f"window of layer {i}"
            if ratio:
                group = "csa" if ratio == 4 else "hca"
                place = [r for r in ratios[:i] if r and kind_of_ratio(r) is kind_of_ratio(ratio)]
                check = [("compressor", group)] + [("indexer", "indexer")] * (ratio == 4)
                for what, name in check:
                    want = reference[f"trace_300.cache_{what}_layer_{i}"]
                    entries = harness.caches[name][len(place)][seq.blocks[name]].flatten(0, 1)
                    assert worst(entries[: len(want)], want) < TOLERANCE, f"{what} of layer {i}"
            if ratio == 4:
                want = reference[f"trace_300.indexer_topk_layer_{i}"].long()
                assert torch.equal(trace.chosen[i][-4:, : want.shape[1]], want), f"choices of layer {i}"
