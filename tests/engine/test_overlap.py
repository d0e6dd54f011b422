"""The overlapped loop beside the plain one: the same steps, the same tokens, whatever happens in between."""

import random
import re
from pathlib import Path

import msgspec
import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.core.request import FinishReason, Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.overlap import OverlappedEngine
from tokenmill.engine.simulated import simulated_engine
from tokenmill.text.tokenizer import Tokenizer

BYTES = Path(__file__).parents[1] / "data" / "byte-tokenizer"
LIMITS = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16}


def engine(*, overlap, kv_tokens=4096, **settings):
    config = EngineConfig(**{**LIMITS, **settings}, overlap=overlap)
    return simulated_engine(config, kv_tokens=kv_tokens, pace=lambda seconds: None)


def request(name, prompt=(1, 2, 3, 4, 5), max_tokens=6, **sampling):
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, **sampling)
    return Request(request_id=name, model="counting", prompt_token_ids=list(prompt), sampling=params, seed=0)


class Watched:
    """An engine, and the plans its runner was given."""

    def __init__(self, **settings):
        self.engine = engine(**settings)
        self.plans = []
        run = self.engine.runner.run
        self.engine._runner.run = lambda plan: (self.plans.append(plan), run(plan))[1]

    def steps(self, num=None):
        """Deltas of `num` steps of the engine, or until it has no work."""
        deltas = []
        while self.engine.has_work() if num is None else num > 0:
            deltas += self.engine.step()
            num = None if num is None else num - 1
        return deltas


def outputs(deltas):
    found = {}
    for delta in deltas:
        ids, end = found.get(delta.request_id, ((), None))
        found[delta.request_id] = (ids + delta.token_ids, delta.finish_reason or end)
    return found


def shapes(plans):
    """What the steps compute; in which physical blocks may differ."""
    return [
        [(s.request_id, s.num_computed_tokens, s.num_scheduled_tokens, s.is_sampling) for s in plan.sequences]
        for plan in plans
    ]


def random_requests(seed, num=12):
    draw = random.Random(seed)
    return [
        request(
            f"r{i}",
            [draw.randrange(256) for _ in range(draw.randrange(1, 40))],
            draw.randrange(1, 24),
            stop_token_ids=(draw.randrange(256),),
        )
        for i in range(num)
    ]


@pytest.mark.parametrize("kv_tokens", [4096, 96], ids=["roomy", "preempting"])
@pytest.mark.parametrize("seed", range(4))
def test_both_loops_run_the_same_steps(seed, kv_tokens):
    plain, overlapped = (Watched(overlap=overlap, kv_tokens=kv_tokens) for overlap in (False, True))
    for watched in (plain, overlapped):
        for one in random_requests(seed):
            watched.engine.add(one)
    assert outputs(overlapped.steps()) == outputs(plain.steps())
    assert shapes(overlapped.plans) == shapes(plain.plans)
    assert overlapped.engine.stats() == plain.engine.stats()
    overlapped.engine.check_integrity()
    if kv_tokens == 96:
        assert plain.engine.stats().num_preemptions_total > 0


def test_steps_are_planned_ahead_while_nothing_changes():
    watched = Watched(overlap=True)
    watched.engine.add(request("a", max_tokens=20))
    asked = []
    schedule = watched.engine._scheduler.schedule
    watched.engine._scheduler.schedule = lambda: (asked.append(1), schedule())[1]
    watched.steps()
    assert len(watched.plans) == 20
    assert len(asked) <= 3  # at the beginning, and when nothing is left


def test_a_stop_nobody_foresaw_costs_no_step():
    """The plan made ahead holds the sequence that has just met its stop token: it is made anew."""
    watched = Watched(overlap=True)
    watched.engine.add(request("stops", max_tokens=50, stop_token_ids=(9,)))
    watched.engine.add(request("goes-on", (21, 22, 23), max_tokens=12))
    found = outputs(watched.steps())
    assert found["stops"] == ((6, 7, 8, 9), FinishReason.STOP)
    assert len(found["goes-on"][0]) == 12
    assert [len(plan.sequences) for plan in watched.plans] == [2] * 4 + [1] * 8


def test_abort_of_a_request_in_the_running_step_frees_it_and_tells_no_more():
    watched = Watched(overlap=True)
    watched.engine.add(request("a", max_tokens=50))
    watched.engine.add(request("b", max_tokens=10))
    watched.steps(4)
    assert watched.engine.abort("a")
    rest = watched.steps()
    assert {delta.request_id for delta in rest} == {"b"}
    assert all(s.request_id == "b" for plan in watched.plans[4:] for s in plan.sequences)
    assert watched.engine.stats().kv_usage == 0
    watched.engine.add(request("a", max_tokens=1))  # its id is free again
    assert outputs(watched.steps())["a"][1] is FinishReason.LENGTH


def test_abort_of_all_leaves_no_work_and_no_blocks():
    watched = Watched(overlap=True)
    watched.engine.add(request("a", max_tokens=50))
    watched.steps(3)
    assert watched.engine.abort("a")
    assert not watched.engine.has_work()
    assert not watched.engine.abort("a")
    assert watched.engine.stats().kv_usage == 0


def test_a_request_that_arrives_while_a_step_runs_is_in_the_next_one():
    plain, overlapped = Watched(overlap=False), Watched(overlap=True)
    for watched in (plain, overlapped):
        watched.engine.add(request("a", max_tokens=9))
    plain.steps(2)
    overlapped.steps(2)  # the second runs
    for watched in (plain, overlapped):
        watched.engine.add(request("b", max_tokens=3))
    assert [len(p.sequences) for p in plain.plans] == [1, 1]
    plain_rest, overlapped_rest = plain.steps(), overlapped.steps()
    assert outputs(plain_rest)["b"] == outputs(overlapped_rest)["b"]
    assert shapes(overlapped.plans) == shapes(plain.plans)


def test_seconds_of_both_loops_add_up():
    watched = Watched(overlap=True)
    watched.engine.add(request("a", max_tokens=8))
    began_s = watched.engine._clock.now()
    seconds = sum(delta.seconds for delta in watched.steps())
    assert 0 < seconds <= watched.engine._clock.now() - began_s


def test_an_error_of_the_runner_comes_out():
    watched = Watched(overlap=True)
    watched.engine.add(request("a"))

    def broken(plan):
        raise RuntimeError("no such device")

    watched.engine._runner.run = broken
    watched.engine.step()
    with pytest.raises(RuntimeError, match="no such device"):
        watched.engine.step()


def test_speculation_is_refused():
    with pytest.raises(ConfigError, match="exclude each other"):
        engine(overlap=True, speculative_config={"method": "ngram"})
    assert isinstance(engine(overlap=True), OverlappedEngine)


def test_a_grammar_is_kept_by_both_loops():
    """Masks are read when a step is launched: its sequence then stands where the last token put it."""
    pytest.importorskip("llguidance")
    vocab_size = Tokenizer.load(BYTES).vocab_size
    found = []
    for overlap in (False, True):
        config = EngineConfig(**LIMITS, overlap=overlap)
        one = simulated_engine(config, vocab_size=vocab_size, tokenizer_path=str(BYTES), pace=lambda seconds: None)
        grammar = Grammar(kind=GrammarKind.REGEX, source="(ab|ba){3}[0-9]")
        asked = [request("held", max_tokens=30), request("free", max_tokens=30)]
        one.add(msgspec.structs.replace(asked[0], grammar=grammar, eos_token_ids=(vocab_size - 1,)))
        one.add(asked[1])
        deltas = []
        while one.has_work():
            deltas += one.step()
        found.append(outputs(deltas))
    assert found[0] == found[1]
    assert re.match("(ab|ba){3}[0-9]", bytes(i for i in found[1]["held"][0] if i < 256).decode())


@pytest.mark.parametrize("budget", [8, 16, 64])
def test_prompts_never_stall_decodes_beyond_the_budget(budget):
    """Every step has at most `budget` tokens, and every decoding sequence is in every step: TPOT is bounded by it."""
    watched = Watched(overlap=False, max_num_batched_tokens=budget)
    watched.engine.add(request("decoding", max_tokens=60))
    watched.steps(2)
    for i in range(3):
        watched.engine.add(request(f"long-{i}", [i] * 300, 2))
    watched.steps()
    assert max(plan.num_tokens for plan in watched.plans) <= budget
    with_decode = [plan for plan in watched.plans if any(s.request_id == "decoding" for s in plan.sequences)]
    assert with_decode == watched.plans[: len(with_decode)] and len(with_decode) == 60
