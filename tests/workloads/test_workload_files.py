"""Workload files: all built-in ones load, mistakes are named, sizes scale by one factor, shapes are what they say."""

import statistics
from itertools import islice

import pytest
import yaml

from tokenmill.core.errors import ConfigError
from tokenmill.workloads.library import load_workload, parse_workload, workload_names
from tokenmill.workloads.sessions import generate
from tokenmill.workloads.sizes import describe, kv_pool_tokens, longest_context, scale_to_fit, working_set_tokens

NAMES = [
    "agentic", "agentic-swarm", "chat", "code-edit", "long-context", "patient-calls", "rag-shared-prefix",
    "summarise-8k1k",
]  # fmt: skip
SMALL = {
    "name": "small",
    "version": 1,
    "description": "x",
    "prefix_tokens": 10,
    "first_tokens": 5,
    "output_tokens": 3,
    "load": {"concurrency": 2},
}


def test_built_in_workloads_are_these() -> None:
    assert workload_names() == NAMES
    digests = {load_workload(name).digest for name in NAMES}
    assert len(digests) == len(NAMES) and all(len(digest) == 16 for digest in digests)


@pytest.mark.parametrize("name", NAMES)
def test_built_in_workloads_say_everything(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name and workload.version >= 1 and workload.description
    assert (workload.load.concurrency is None) != (workload.load.rate_per_s is None)
    assert workload.kv_pool_share > 0


def test_agentic_has_the_shape_of_the_quoted_traffic() -> None:
    """Median 43 turns, 142 K tokens in, 444 out, over 96 % hits, sub-agents in 44 % of the sessions."""
    workload = load_workload("agentic")
    sessions = list(islice(generate(workload, seed=1), 300))
    turns = [turn for session in sessions for turn in session.turns]
    assert statistics.median(len(session.turns) for session in sessions) == pytest.approx(43, rel=0.15)
    assert statistics.mean(turn.num_prompt_tokens for turn in turns) == pytest.approx(142_000, rel=0.25)
    assert statistics.mean(turn.num_output_tokens for turn in turns) == pytest.approx(444, rel=0.1)
    facts = describe(workload, 100, seed=1)
    assert facts["reusable_share"] > 0.96
    assert sum(1 for session in sessions if session.children) / 300 == pytest.approx(0.44, abs=0.08)


def test_swarm_is_one_lead_300_agents_3000_tasks_and_scales() -> None:
    (session,) = islice(generate(load_workload("agentic-swarm")), 1)
    assert len(session.children) == 300 and {child.model for child in session.children} == {1} and session.model == 0
    assert sum(len(child.turns) for child in session.children) == 3000
    (small,) = islice(generate(load_workload("agentic-swarm").scaled(0.01)), 1)
    assert len(small.children) == 3 and sum(len(child.turns) for child in small.children) == 30
    assert small.children[0].turns[0].num_prompt_tokens > 3500  # lengths are not scaled here


def test_one_factor_scales_lengths_and_gaps() -> None:
    full, tenth = load_workload("agentic"), load_workload("agentic").scaled(0.1)
    (a,), (b,) = islice(generate(full), 1), islice(generate(tenth), 1)
    assert len(a.turns) == len(b.turns)
    assert b.turns[-1].num_prompt_tokens == pytest.approx(a.turns[-1].num_prompt_tokens / 10, rel=0.02)
    assert b.turns[1].gap_s == pytest.approx(a.turns[1].gap_s / 10)
    assert tenth.digest == full.digest and tenth.scale == pytest.approx(0.1)


def test_scale_to_fit_brings_every_context_below_the_limit() -> None:
    workload = load_workload("agentic")
    factor = scale_to_fit(workload, 8192)
    longest = max(longest_context(session) for session in islice(generate(workload.scaled(factor)), 64))
    assert 0.9 * 8192 < longest <= 8192


def test_working_set_counts_shared_tokens_once() -> None:
    workload = parse_workload(SMALL)
    sessions = list(islice(generate(workload), 4))
    assert working_set_tokens(sessions) == 10 + 4 * (5 + 3)
    assert kv_pool_tokens(workload, concurrency=4) == 42
    half = parse_workload(SMALL | {"kv_pool_share": 0.5})
    assert kv_pool_tokens(half, concurrency=4) == 21


def test_digest_is_of_the_content_not_of_the_spelling(tmp_path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("# comment\n" + yaml.safe_dump(SMALL, sort_keys=False))
    first = load_workload(str(path)).digest
    path.write_text(yaml.safe_dump(SMALL, sort_keys=True))
    assert load_workload(str(path)).digest == first == parse_workload(SMALL).digest
    assert parse_workload(SMALL | {"version": 2}).digest != first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outptu_tokens": 3}, r"outptu_tokens is unknown: did you mean 'output_tokens'"),
        ({"first_tokens": {"normal": [1, 2]}}, r"first_tokens=.*'normal' is unknown.*uniform: \[low, high\]"),
        ({"first_tokens": {"uniform": [5, 2]}}, r"first_tokens=.*5 > 2"),
        ({"first_tokens": -1}, r"first_tokens=-1 .*negative"),
        ({"first_tokens": {"lognormal": {"median": 5, "sigma": 1, "max": 4}}}, r"median must be positive and between"),
        ({"load": {"concurency": 1}}, r"load.concurency is unknown: did you mean 'concurrency'"),
        ({"sub_agents": {"share": 1.0}}, r"sub_agents is incomplete: give sub_agents.num_agents"),
        ({"slo": "ttft=1s,tpto=3ms"}, r"unknown objective 'tpto': did you mean 'tpot'"),
        ({"version": 0}, r"version=0 must be a whole number, 1 or more"),
        ({"scales": ["time"]}, r"scales=\['time'\] must be a list of tokens, counts, gaps"),
    ],
)
def test_mistakes_are_named_with_their_place(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_workload(SMALL | change)


def test_unknown_workload_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'agentik' is unknown: did you mean 'agentic'"):
        load_workload("agentik")
    with pytest.raises(ConfigError, match=r"'no/such.yaml' cannot be read"):
        load_workload("no/such.yaml")
    without = {key: value for key, value in SMALL.items() if key != "load"}
    with pytest.raises(ConfigError, match=r"load is missing"):
        parse_workload(without)
