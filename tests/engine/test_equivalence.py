"""The engine on its batch-invariant paths: however a request is cut, batched, cached or preempted, same tokens out.

Log-probabilities are compared too, exactly: the reference kernels and the C kernels are batch-invariant bit for bit.
"""

import random

import pytest

from tests.tiny import write_tiny_llama
from tokenmill.core.request import Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.load import load_engine

BLOCK = 16
VOCAB = 256
PATHS = {
    "reference": {"deterministic": True},
    "native": {"kernels": "native"},
    "native, int8 everywhere": {"kernels": "native", "quantization": "int8", "kv_cache_dtype": "int8"},
    "overlapped": {"kernels": "native", "overlap": True},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB)


@pytest.fixture(scope="module", params=PATHS)
def make_engine(request, checkpoint):
    def make(**settings):
        config = {**PATHS[request.param], "block_size": BLOCK, "max_model_len": 256, "kv_cache_memory_bytes": 2**22}
        return load_engine(checkpoint, EngineConfig(**{**config, **settings}), name="tiny")

    make.plain = make(enable_prefix_caching=False)
    return make


def prompt_of(seed, length):
    return random.Random(seed).choices(range(VOCAB), k=length)


def request(name, prompt, max_tokens=8, seed=0, **sampling):
    sampling = {"temperature": 0.0, "logprobs": 2, **sampling}
    return Request(
        request_id=name,
        model="tiny",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        seed=seed,
    )


def run(engine, *requests):
    """Outputs by request id: (ids, logprobs, prompt logprobs, cached tokens)."""
    outputs = {r.request_id: ([], [], [], []) for r in requests}
    for r in requests:
        engine.add(r)
    for _ in range(20_000):
        if not engine.has_work():
            break
        for delta in engine.step():
            ids, logprobs, prompt_logprobs, cached = outputs[delta.request_id]
            ids.extend(delta.token_ids)
            logprobs.extend(delta.logprobs or ())
            prompt_logprobs.extend(delta.prompt_logprobs or ())
            if delta.num_cached_tokens is not None:
                cached.append(delta.num_cached_tokens)
        engine.check_integrity()
    assert not engine.has_work()
    return outputs


def alone(make_engine, one):
    """The request by itself: whole prompt in one step, nothing cached."""
    return run(make_engine.plain, one)[one.request_id][:3]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9}, {"prompt_logprobs": 1}])
@pytest.mark.parametrize("budget", [1, 3, 7, 16, 64])
def test_chunked_equals_whole(make_engine, budget, sampling):
    """S65: prompt log-probabilities included, for prompts of one to many chunks."""
    one = request("a", prompt_of(1, 50), seed=5, **sampling)
    engine = make_engine(enable_prefix_caching=False, max_num_batched_tokens=budget)
    assert run(engine, one)["a"][:3] == alone(make_engine, one)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batch_equals_alone(make_engine, temperature):
    """S67, S68: mixed prefill and decode in every batch; a burst repeated gives the same bits."""
    burst = [
        request(f"r{i}", prompt_of(i, 1 + i * 7 % 40), 1 + i % 9, seed=i, temperature=temperature) for i in range(24)
    ]
    engine = make_engine(max_num_batched_tokens=24, max_num_seqs=10)
    outputs = run(engine, *burst)
    for one in burst[::3]:
        assert outputs[one.request_id][:3] == alone(make_engine, one)
    for _ in range(2):
        engine.clear_cache()
        assert {k: v[:3] for k, v in run(engine, *burst).items()} == {k: v[:3] for k, v in outputs.items()}


def test_cached_equals_cold_for_every_prefix_length(make_engine):
    """S15, S20: and the number of cached tokens is exactly what the block size implies."""
    base = prompt_of(3, 50)
    engine = make_engine()
    run(engine, request("base", base))
    for n in range(1, 51):
        one = request(f"n{n}", base[:n] + prompt_of(100 + n, 2), 2)
        want = alone(make_engine, one)
        got = run(engine, one)[one.request_id]
        assert got[3] == [n // BLOCK * BLOCK] and got[:3] == want
        warm = run(engine, one)[one.request_id]
        assert warm[3] == [(n + 1) // BLOCK * BLOCK] and warm[:3] == want


def test_a_b_a_gives_a_again(make_engine):
    """S16: with little memory, so that B evicts part of A."""
    engine = make_engine(kv_cache_memory_bytes=60_000, max_num_seqs=2)
    a, b = request("a", prompt_of(1, 60)), request("b", prompt_of(2, 60))
    first = run(engine, a)["a"][:3]
    run(engine, b)
    assert run(engine, a)["a"][:3] == first == alone(make_engine, a)


@pytest.mark.parametrize("caching", [True, False])
def test_preempted_equals_uninterrupted(make_engine, caching):
    requests = [request(f"r{i}", prompt_of(i, 20 + i), 16, seed=i, temperature=0.8) for i in range(6)]
    engine = make_engine(kv_cache_memory_bytes=45_000, max_num_seqs=6, enable_prefix_caching=caching)
    outputs = run(engine, *requests)
    assert engine.stats().num_preemptions_total > 0
    for one in requests:
        assert outputs[one.request_id][:3] == alone(make_engine, one)


def test_preempted_at_every_step_equals_uninterrupted(make_engine):
    one = request("a", prompt_of(9, 21), 12, temperature=0.7, seed=3, prompt_logprobs=0)
    want = alone(make_engine, one)
    for stop_at in range(1, 19, 2):
        engine = make_engine(max_num_batched_tokens=4)
        engine.add(one)
        ids, logprobs, prompt_logprobs = [], [], []
        for step in range(10_000):
            if not engine.has_work():
                break
            engine.check_integrity()  # the overlapped loop ends its running step first
            if step == stop_at and engine._scheduler._running:
                engine._scheduler._preempt(engine._scheduler._running[0])
                engine.clear_cache()
            for delta in engine.step():
                ids.extend(delta.token_ids)
                logprobs.extend(delta.logprobs or ())
                prompt_logprobs.extend(delta.prompt_logprobs or ())
        assert (ids, logprobs, prompt_logprobs) == want


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 33])
def test_prompt_logprobs_equal_those_of_generated_tokens(make_engine, length):
    """S66: cold, warm, and after another request with the same prefix; one per prompt token from the second on."""
    engine = make_engine(max_num_batched_tokens=16)
    one = request("a", prompt_of(4, length), prompt_logprobs=2)
    cold = run(engine, one)["a"]
    assert len(cold[2]) == length - 1
    run(engine, request("b", [*one.prompt_token_ids, 1, 2, 3]))
    warm = run(engine, one)["a"]
    assert warm[:3] == cold[:3] and warm[3] == [0]
    longer = request("c", one.prompt_token_ids + cold[0], 1, prompt_logprobs=2)
    tail = run(engine, longer)["c"][2][length - 1 :]
    assert [(t.token_id, t.logprob) for t in tail] == [(t.token_id, t.logprob) for t in cold[1]]


def test_same_seed_same_text_whatever_else_runs(make_engine):
    one = request("mine", prompt_of(7, 12), 20, seed=42, temperature=1.0)
    want = alone(make_engine, one)
    for others in range(1, 8, 2):
        crowd = [request(f"o{i}", prompt_of(50 + i, 9 + i), 20, seed=42, temperature=1.0) for i in range(others)]
        assert run(make_engine(max_num_batched_tokens=16), *crowd, one)["mine"][:3] == want
