"""The scheduler over the counting runner, on virtual time: every token right, every block back, nobody starved."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.clock import ManualClock
from tokenmill.core.errors import BadRequestError, ContextLengthError
from tokenmill.core.request import FinishReason, Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.simulated import simulated_engine

HYBRID = (
    CacheGroup("full", GroupKind.FULL, 4096),
    CacheGroup("window", GroupKind.SLIDING_WINDOW, 512, window_tokens=5),
    CacheGroup("state", GroupKind.COMPRESSOR_STATE, 512, window_tokens=1),
    CacheGroup("fresh", GroupKind.COMPRESSOR_STATE, 512, window_tokens=0),
)


def engine_of(kv_tokens=4096, groups=None, max_model_len=512, **settings_):
    clock = ManualClock()
    config = EngineConfig(block_size=4, **{"max_num_seqs": 8, "max_num_batched_tokens": 16, **settings_})
    return simulated_engine(
        config, kv_tokens=kv_tokens, groups=groups, max_model_len=max_model_len, clock=clock, pace=clock.advance
    )


def request(request_id, prompt, max_tokens=4, priority=0, **sampling):
    return Request(
        request_id=request_id,
        model="counting",
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        priority=priority,
    )


def run(engine, limit=10_000):
    """Step to the end; returns output ids and last delta by request."""
    outputs, last = {}, {}
    for _ in range(limit):
        if not engine.has_work():
            break
        for delta in engine.step():
            outputs.setdefault(delta.request_id, []).extend(delta.token_ids)
            last[delta.request_id] = delta
        engine.check_integrity()
    assert not engine.has_work(), "no progress"
    return outputs, last


def expected(prompt, max_tokens):
    return [(prompt[-1] + 1 + i) % 256 for i in range(max_tokens)]


def test_one_request_counts_and_ends_by_length():
    engine = engine_of()
    engine.add(request("a", range(40), 10))
    outputs, last = run(engine)
    assert outputs["a"] == expected(range(40), 10)
    assert last["a"].finish_reason is FinishReason.LENGTH
    assert engine.stats().kv_usage == 0


def test_a_long_prompt_is_chunked_by_the_budget_and_decodes_go_on_beside_it():
    engine = engine_of()
    engine.add(request("short", range(3), 20))
    engine.step()
    engine.add(request("long", range(100), 1))
    steps = 0
    while engine._scheduler.get("long") is not None:
        deltas = {d.request_id: d for d in engine.step()}
        assert len(deltas["short"].token_ids) == 1, "a prefill must not stall a decode"
        steps += 1
    assert steps == 7  # 100 tokens at 15 per step


@pytest.mark.parametrize("chunked", [True, False])
def test_chunking_is_a_switch(chunked):
    engine = engine_of(enable_chunked_prefill=chunked, max_num_batched_tokens=512)
    for name in "ab":
        engine.add(request(name, [ord(name)] * 300, 1))
    planned = engine.step()
    assert len(planned) == (2 if chunked else 1)


def test_priority_then_arrival():
    engine = engine_of(max_num_seqs=1)
    for name, priority in (("low", 1), ("first", 0), ("second", 0), ("urgent", -1)):
        engine.add(request(name, [1], 1, priority=priority))
    order = [d.request_id for _ in range(4) for d in engine.step()]
    assert order == ["urgent", "first", "second", "low"]


def test_prefix_hits_are_exactly_what_block_size_implies():
    """S15: every length around the block boundaries."""
    for n in range(1, 40):
        engine = engine_of()
        engine.add(request("cold", range(n), 1))
        run(engine)
        engine.add(request("warm", range(n), 1))
        _, last = run(engine)
        assert last["warm"].num_cached_tokens is None or last["warm"].num_cached_tokens == (n - 1) // 4 * 4
        assert engine.stats().prefix_hits_total == (n - 1) // 4 * 4
        assert engine.stats().prefix_queries_total == 2 * n


def test_generated_tokens_are_found_by_the_next_turn():
    """S21: the tokens computed in a turn are bounded by the new text plus a constant."""
    engine = engine_of()
    history = list(range(10))
    for turn in range(10):
        before = engine.stats().prompt_tokens_total
        engine.add(request(f"turn{turn}", history, 6))
        outputs, _ = run(engine)
        assert engine.stats().prompt_tokens_total - before <= 10 + 4
        history = history + outputs[f"turn{turn}"] + [7, 8, 9]


@pytest.mark.parametrize("sharing", [True, False])
def test_a_prefix_that_arrives_together_is_computed_once(sharing):
    """Thirty-two requests of 100 shared and 5 own tokens: one computes the prefix, the others wait for it."""
    engine = engine_of(enable_inflight_sharing=sharing, max_num_seqs=32, max_num_batched_tokens=512)
    prompts = {f"r{i}": [*range(100), 200 + i, 1, 2, 3, 4] for i in range(32)}
    for name, prompt in prompts.items():
        engine.add(request(name, prompt, 3))
    outputs, _ = run(engine)
    assert outputs == {name: expected(prompt, 3) for name, prompt in prompts.items()}
    computed = engine.stats().prompt_tokens_total
    if sharing:
        assert computed == 105 + 31 * 5
    else:
        assert computed > 400


def test_a_shared_prefix_whose_first_owner_leaves_is_taken_over():
    engine = engine_of(max_num_seqs=4)
    for name in "abc":
        engine.add(request(name, [*range(100), ord(name)], 2))
    engine.step()
    engine.abort("a")
    outputs, _ = run(engine)
    assert outputs == {name: expected([ord(name)], 2) for name in "bc"}
    assert engine.stats().prefix_hits_total == 16 + 100  # b takes what a had done, c waits for b


def test_salts_do_not_share():
    engine = engine_of()
    for salt in (None, "a", "b"):
        one = request(f"r{salt}", range(20), 1)
        engine.add(Request(**{**{f: getattr(one, f) for f in one.__struct_fields__}, "cache_salt": salt}))
        run(engine)
    assert engine.stats().prefix_hits_total == 0


def test_preempted_requests_end_right_and_memory_comes_back():
    """S62: capacity of about three requests, fifty asked for; all finish."""
    engine = engine_of(kv_tokens=120, max_model_len=60)
    for i in range(50):
        engine.add(request(f"r{i}", range(i, i + 20), 18))
    outputs, last = run(engine)
    assert engine.stats().num_preemptions_total > 0
    for i in range(50):
        assert outputs[f"r{i}"] == expected(range(i, i + 20), 18)
        assert last[f"r{i}"].finish_reason is FinishReason.LENGTH
    assert engine.stats().kv_usage == 0


def test_abort_frees_at_once_at_every_stage():
    """S59, S60: queued, in mid-prefill, in the step that ends prefill, decoding; also the very first request."""
    for stage in range(12):
        engine = engine_of(max_num_seqs=1)
        engine.add(request("a", range(50), 5))
        engine.add(request("queued", range(50), 5))
        for _ in range(stage):
            engine.step()
        engine.abort("queued")
        engine.abort("a")
        assert engine.stats().kv_usage == 0 and not engine.has_work()
        engine.check_integrity()
        engine.add(request("after", range(5), 2))
        outputs, _ = run(engine)
        assert outputs["after"] == [5, 6]


def test_abort_of_an_unknown_request_changes_nothing():
    assert engine_of().abort("nobody") is False


def test_stop_tokens_and_min_tokens():
    engine = engine_of()
    engine.add(request("stop", [10], 50, stop_token_ids=(15,)))
    engine.add(request("later", [10], 50, stop_token_ids=(15,), min_tokens=5))
    outputs, last = run(engine)
    assert outputs["stop"] == [11, 12, 13, 14, 15] and last["stop"].stop_token_id == 15
    assert last["stop"].finish_reason is FinishReason.STOP
    assert len(outputs["later"]) == 50  # the counting model passes 15 as the fifth token, once


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"prompt": []}, BadRequestError),
        ({"prompt": [1] * 512}, ContextLengthError),
        ({"prompt": [1] * 500, "max_tokens": 20}, ContextLengthError),
        ({"prompt": [300]}, BadRequestError),
        ({"prompt": [-1]}, BadRequestError),
        ({"prompt": [1], "temperature": -1.0}, BadRequestError),
    ],
)
def test_what_can_never_run_is_refused_and_leaves_no_trace(bad, error):
    engine = engine_of()
    with pytest.raises(error):
        engine.add(request("bad", **{"max_tokens": 1, **bad}))
    assert not engine.has_work()
    engine.add(request("bad", [1], 1))  # the id is free
    assert run(engine)[0]["bad"] == [2]


def test_a_prompt_that_can_never_fit_the_pool_is_refused():
    with pytest.raises(ContextLengthError, match="KV cache"):
        engine_of(kv_tokens=100).add(request("big", range(200), 1))


def test_seconds_of_a_step_are_split_without_rest():
    engine = engine_of()
    for i in range(5):
        engine.add(request(f"r{i}", range(10), 5))
    total = 0.0
    while engine.has_work():
        total += sum(d.seconds for d in engine.step())
    assert total == pytest.approx(engine._clock.now())


class EngineMachine(RuleBasedStateMachine):
    """Random arrivals, aborts and steps over a hybrid cache that is much too small."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = engine_of(kv_tokens=600, groups=HYBRID, max_model_len=64, max_num_seqs=4)
        self.prompts: dict[str, tuple[list[int], int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.count = 0

    @rule(
        start=st.integers(0, 3), length=st.integers(1, 40), max_tokens=st.integers(1, 20), priority=st.integers(-1, 1)
    )
    def add(self, start, length, max_tokens, priority):
        name = f"r{self.count}"
        self.count += 1
        prompt = list(range(start, start + length))
        self.prompts[name] = (prompt, max_tokens)
        self.outputs[name] = []
        self.engine.add(request(name, prompt, max_tokens, priority=priority))

    @rule(num=st.integers(1, 6))
    def step(self, num):
        for _ in range(num):
            for delta in self.engine.step():
                assert delta.request_id not in self.finished, "a delta after the end"
                self.outputs[delta.request_id].extend(delta.token_ids)
                if delta.finish_reason is not None:
                    self.finished.add(delta.request_id)

    @rule(data=st.data())
    def abort(self, data):
        if self.prompts:
            name = data.draw(st.sampled_from(sorted(self.prompts)))
            if self.engine.abort(name):
                self.finished.add(name)

    @invariant()
    def sound(self):
        self.engine.check_integrity()
        for name, (prompt, max_tokens) in self.prompts.items():
            assert self.outputs[name] == expected(prompt, max_tokens)[: len(self.outputs[name])]

    def teardown(self):
        for _ in range(5_000):
            if not self.engine.has_work():
                break
            self.step(1)
        assert not self.engine.has_work() and self.finished == set(self.prompts)
        assert self.engine.stats().kv_usage == 0
        self.engine.check_integrity()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=12),
    budget=st.integers(1, 40),
    max_num_seqs=st.integers(1, 6),
)
def test_budgets_are_respected_and_all_finish(lengths, budget, max_num_seqs):
    """S31: many requests of one to many chunks; counters return to zero."""
    engine = engine_of(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, kv_tokens=400, max_model_len=100)
    runner_run = engine._runner.run

    def checked_run(plan):
        assert plan.num_tokens <= budget and len(plan.sequences) <= max_num_seqs
        return runner_run(plan)

    engine._runner.run = checked_run
    for i, (length, max_tokens) in enumerate(lengths):
        engine.add(request(f"r{i}", range(length), max_tokens))
    outputs, _ = run(engine)
    assert outputs == {f"r{i}": expected(range(n), m) for i, (n, m) in enumerate(lengths)}
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.generation_tokens_total == sum(m for _, m in lengths)
