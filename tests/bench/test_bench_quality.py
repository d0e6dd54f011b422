"""`bench quality`: acceptance counted from the engine's own steps, calls judged strictly, copies at their distance."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tokenmill.bench import quality_set
from tokenmill.bench.quality import QualityBench, _acceptance, _is_well_formed, _load, _nats, _only_call
from tokenmill.bench.quality_run import Answer, Question, ask
from tokenmill.bench.quality_set import QualitySet, ToolCase
from tokenmill.cli.app import build_app
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import SamplingParams
from tokenmill.models.store import resolve_model
from tokenmill.text.parsers.events import ParsedCall
from tokenmill.text.tokenizer import Tokenizer

ENGINE: dict[str, Any] = {"num_threads": 1}
TOOL = {
    "type": "function",
    "function": {
        "name": "convert",
        "parameters": {"type": "object", "properties": {"amount": {"type": "number"}, "to": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve_model("v4-nano"))


@pytest.fixture(scope="module")
def questions(tokenizer: Tokenizer) -> QualitySet:
    return QualitySet.load(tokenizer)


@pytest.fixture(scope="module")
def engine():
    return _load(QualityBench(engine=ENGINE), None)[0]


def test_texts_begin_with_the_begin_token_once(questions: QualitySet) -> None:
    assert questions.hard_domain in questions.texts and questions.texts.keys() == questions.prompts.keys()
    for ids in [ids for some in questions.texts.values() for ids in some]:
        assert ids[0] == 0 and ids.count(0) == 1


@pytest.mark.parametrize("distance", [256, 1024, 4096])
def test_copies_lie_at_their_distance(questions: QualitySet, tokenizer: Tokenizer, distance: int) -> None:
    for case in questions.copy_cases(tokenizer, distance):
        copied = case.token_ids[case.begin :]
        first = case.begin - distance
        assert case.token_ids[first : first + len(copied)] == copied


def test_a_distance_that_the_filler_does_not_reach(questions: QualitySet, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="cannot be made of"):
        questions.copy_cases(tokenizer, 200)  # the passage alone is nearly as long
        questions.copy_cases(tokenizer, 10**6)


def test_nats_are_those_of_the_logprobs(engine, questions: QualitySet) -> None:
    text = questions.texts["stories"][0]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0)
    one_by_one = []
    for n in (len(text) - 2, len(text) - 1):
        (answer,) = ask(engine, [Question(text[: n + 1], SamplingParams(max_tokens=1, prompt_logprobs=0))])
        one_by_one.append(answer.prompt_logprobs[-1])
        assert answer.prompt_logprobs[-1].token_id == text[n] and len(answer.prompt_logprobs) == n
    assert _nats(engine, [text]) > 0 and all(p.logprob < 0 for p in one_by_one)
    assert ask(engine, [Question(text, sampling)])[0].verifications == []


def test_acceptance_counts_drafts_of_full_steps(questions: QualitySet) -> None:
    """Every output token but the first comes out of a verification: 1 and its accepted drafts."""
    bench = QualityBench(engine=ENGINE, osl=24)
    few = QualitySet("stories", {}, {"stories": questions.prompts["stories"][:3]}, [], [], "")
    lengths = _acceptance(bench, few, 2)
    assert 1.0 <= lengths["stories"] <= 3.0 and lengths["overall"] == lengths["stories"]
    engine = _load(bench, {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False})[0]
    plain = _load(bench, None)[0]
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    drafted, wanted = (ask(e, [Question(p, sampling) for p in few.prompts["stories"]]) for e in (engine, plain))
    for one, two in zip(drafted, wanted, strict=True):
        assert one.token_ids == two.token_ids
        total = sum(1 + v.accepted for v in one.verifications)
        # the first token has no drafts before it, nor may the last; an accepted end token hides what follows it
        assert len(one.token_ids) - 2 <= total <= len(one.token_ids) + 1


@pytest.mark.parametrize(
    ("name", "arguments", "is_right"),
    [
        ("convert", {"amount": 1.5, "to": "NOK"}, True),
        ("convert", {"amount": 2, "to": "NOK"}, True),
        ("convert", {"amount": "2", "to": "NOK"}, False),
        ("convert", {"amount": True, "to": "NOK"}, False),
        ("convert", {"amount": 2}, False),
        ("convert", {"amount": 2, "to": "NOK", "more": 1}, False),
        ("add", {"amount": 2, "to": "NOK"}, False),
    ],
)
def test_calls_are_judged_by_name_parameters_and_types(name: str, arguments: dict, is_right: bool) -> None:
    call = ParsedCall("id", name, json.dumps(arguments), is_complete=True)
    assert _is_well_formed(call, ToolCase(TOOL, "", {}, False)) is is_right


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ("{}", True),
        ("I call it: {}", False),
        ("{}{}", False),
        ("no call", False),
        ('\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="convert">\n', False),
    ],
)
def test_only_one_whole_call_counts(tokenizer: Tokenizer, text: str, is_call: bool) -> None:
    call = (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="convert">\n<｜DSML｜parameter name="amount" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    ids = tokenizer.encode(text.replace("{}", call), add_special_tokens=False)
    found = _only_call(tokenizer, Answer(ids), ToolCase(TOOL, "", {}, False))
    assert (found is not None) is is_call


def test_speculation_is_the_benchs_own_matter() -> None:
    with pytest.raises(ConfigError, match="--num-drafts"):
        QualityBench(engine={"speculative_config": {"method": "mtp"}}).check()


def test_the_command_ends_in_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_set, "FILE_TOKENS", 160)
    sizes = ["--num-drafts", "none", "--distances", "256", "--num-tool-calls", "2", "--set", "num_threads=1"]
    done = CliRunner().invoke(build_app(), ["bench", "quality", *sizes])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bench"] == "quality" and result["perplexity"].keys() == result["nats_per_token"].keys()
    assert {"mtp_acceptance_length", "tool_call_validity", "copy_accuracy"} <= result.keys()
    assert 0 <= result["copy_accuracy"]["256"] <= 1 and result["mtp_acceptance_length"] == {}
