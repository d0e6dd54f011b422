"""Grammars in the real engine on a tiny random model: cut, batched, preempted, with n, logprobs, any sampling."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.structured.engines import BYTES, EOS, byte_engine, noise, request, run, write_byte_llama
from tests.structured.helpers import GRAMMARS, PERSON, json_schema, object_of, take_text
from tests.structured.schemas import draw_schema
from tests.structured.validator import problem
from tokenmill.core.errors import BadRequestError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.core.request import FinishReason, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.simulated import simulated_engine
from tokenmill.engine.structured.base import GrammarBackend, GrammarLimitError
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.llm import LLM
from tokenmill.text.tokenizer import Tokenizer

pytestmark = pytest.mark.requires_llguidance
_SMALL_POOL = 2**18
REGEX = Grammar(kind=GrammarKind.REGEX, source="[a-c]{2,8}")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_llama(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Engine:
    return byte_engine(checkpoint)


def _check_schemas(engine: Engine, backend: GrammarBackend, tokenizer: Tokenizer, seeds: range) -> None:
    """What ends by itself is valid, what is cut is a valid beginning, and nearly everything ends."""
    schemas = {f"s{seed}": draw_schema(seed) for seed in seeds}
    requests = [request(name, json_schema(schema), seed=i) for i, (name, schema) in enumerate(schemas.items())]
    outputs = run(engine, *requests)
    num_ended = 0
    for name, schema in schemas.items():
        output = outputs[name]
        assert output.error is None, f"{schema}: {output.error}"
        if output.finish_reason is FinishReason.STOP:
            num_ended += 1
            found = problem(json.loads(output.text), schema)
            assert found is None, f"{json.dumps(schema)}: {output.text!r}: {found}"
        else:
            matcher = backend.compile(json_schema(schema)).new_matcher()
            assert all(matcher.advance(token_id) for token_id in output.token_ids), f"{schema}: no valid beginning"
    assert num_ended >= 0.9 * len(schemas), f"{num_ended} of {len(schemas)} ended"


def test_schemas(plain: Engine, backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    _check_schemas(plain, backend, tokenizer, range(40))


def test_two_hundred_schemas_in_chunks(checkpoint: Path, backend: GrammarBackend, tokenizer: Tokenizer) -> None:
    """On the plain fast kernels."""
    engine = byte_engine(checkpoint, deterministic=False, kernels="cpu", max_num_batched_tokens=64, max_num_seqs=16)
    _check_schemas(engine, backend, tokenizer, range(40, 240))


@pytest.mark.parametrize("kind", GRAMMARS)
def test_every_kind_of_grammar(plain: Engine, backend: GrammarBackend, tokenizer: Tokenizer, kind: str) -> None:
    outputs = run(plain, *(request(f"{kind}{seed}", GRAMMARS[kind], seed=seed) for seed in range(4)))
    for output in outputs.values():
        matcher = backend.compile(GRAMMARS[kind]).new_matcher()
        assert take_text(matcher, tokenizer, output.text)
        assert output.finish_reason is FinishReason.LENGTH or matcher.is_accepting


def _mixed() -> list[Any]:
    """Long and short prompts, with and without grammars, greedy and drawn."""
    person = json_schema(PERSON)
    return [
        request("long", person, prompt=noise(1, 150), seed=1, max_tokens=60),
        request("free", prompt=noise(2, 90), seed=2, max_tokens=40),
        request("greedy", person, prompt=noise(3, 40), temperature=0.0, max_tokens=60),
        request("regex", REGEX, prompt=noise(4, 70), seed=4, top_k=20, top_p=0.9, max_tokens=40),
        request("choice", GRAMMARS["choice"], prompt=noise(5, 20), seed=5, min_p=0.01, max_tokens=40),
        request("tree", GRAMMARS["tree"], prompt=noise(6, 120), seed=6, max_tokens=60),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16, "block_size": 16},
        {"kv_cache_memory_bytes": _SMALL_POOL, "max_model_len": 256, "block_size": 16},
        {"max_num_seqs": 2},
        {"enable_prefix_caching": False},
    ],
    ids=["chunked", "preempted", "few at a time", "uncached"],
)
def test_same_tokens_however_the_steps_are_cut(checkpoint: Path, plain: Engine, settings: dict[str, Any]) -> None:
    alone = {one.request_id: run(plain, one)[one.request_id] for one in _mixed()}
    engine = byte_engine(checkpoint, **settings)
    together = run(engine, *_mixed())
    assert {name: out.token_ids for name, out in together.items()} == {n: out.token_ids for n, out in alone.items()}
    if "kv_cache_memory_bytes" in settings:
        assert engine.stats().num_preemptions_total > 0, "the pool was made to be too small"


def test_choices_of_one_request_differ_and_all_keep_to_it(plain: Engine) -> None:
    outputs = run(plain, *(request(f"n{i}", json_schema(PERSON), choice_index=i) for i in range(8)))
    texts = {output.text for output in outputs.values() if output.finish_reason is FinishReason.STOP}
    assert len(texts) > 4 and all(problem(json.loads(text), PERSON) is None for text in texts)


def test_log_probabilities_are_of_the_model_not_of_the_mask(plain: Engine) -> None:
    forced = Grammar(kind=GrammarKind.CHOICE, source='["abc"]')
    output = run(plain, request("a", forced, logprobs=3))["a"]
    assert output.text == "abc" and len(output.logprobs) == 4
    assert all(entry.logprob < -0.01 and len(entry.top) == 3 for entry in output.logprobs)
    assert any(entry.token_id not in dict(entry.top) for entry in output.logprobs), "some forced byte was unlikely"


def test_thinking_is_free_until_it_ends(plain: Engine) -> None:
    """The grammar begins behind the ids that it is to start after, and never on its own."""
    late = Grammar(kind=GrammarKind.CHOICE, source='["xyz"]', start_after=(ord("!"),))
    biased = {ord("!"): 3.0}
    for seed in range(6):
        output = run(plain, request(f"t{seed}", late, seed=seed, logit_bias=biased, ignore_eos=False))[f"t{seed}"]
        ids = output.token_ids
        if ord("!") in ids and output.finish_reason is FinishReason.STOP:
            assert bytes(ids[ids.index(ord("!")) + 1 :]) == b"xyz\x00"
            break
    else:
        pytest.fail("no answer reached the end of its thinking")


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_tokens": 100},
        {"stop_token_ids": (ord("a"), ord("b"), ord("c")), "min_tokens": 100},
        {"logit_bias": {ord("a"): -100.0, ord("b"): -100.0, ord("c"): -100.0}},
        {"logit_bias": {ord("z"): 100.0, EOS: -100.0}},
        {"repetition_penalty": 5.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"top_k": 1},
        {"top_p": 0.01},
        {"min_p": 1.0},
        {"temperature": 0.0},
        {"temperature": 50.0},
    ],
    ids=str,
)
def test_nothing_in_sampling_breaks_a_grammar(plain: Engine, sampling: dict[str, Any]) -> None:
    """A grammar that has nothing left but the end wins over min_tokens; what it forbids no bias brings back."""
    output = run(plain, request("a", REGEX, **sampling))["a"]
    assert output.error is None and re.fullmatch("[a-c]{1,8}", output.text), output
    assert output.finish_reason is FinishReason.STOP


def test_ignore_eos_goes_on_with_end_tokens(plain: Engine) -> None:
    output = run(plain, request("a", REGEX, ignore_eos=True, max_tokens=12))["a"]
    assert output.finish_reason is FinishReason.LENGTH and len(output.token_ids) == 12
    assert re.fullmatch("[a-c]{2,8}", output.text) and output.token_ids[-1] == EOS


def test_two_spaces_are_never_allowed(plain: Engine) -> None:
    """S40: a model that loves blanks still ends its JSON: they are bounded, however it is biased."""
    blanks = {ord(" "): 100.0, ord("\n"): 100.0, ord("\t"): 100.0}
    schema = object_of(a={"type": "integer", "minimum": 0, "maximum": 9}, b={"enum": ["x"]}, c={"type": "null"})
    output = run(plain, request("a", json_schema(schema), logit_bias=blanks, max_tokens=60))["a"]
    assert output.finish_reason is FinishReason.STOP and problem(json.loads(output.text), schema) is None
    free = run(plain, request("b", Grammar(kind=GrammarKind.JSON_OBJECT), logit_bias={ord(" "): 100.0}))["b"]
    assert "  " not in free.text.partition('"')[0] and "\n" not in free.text


def test_concurrent_schemas_with_a_shared_prefix_keep_apart(checkpoint: Path) -> None:
    """S38: 32 at once on one cached prefix, each with its own id in its schema: 32 answers, the right id in each."""
    engine = byte_engine(checkpoint, block_size=16)
    prefix = noise(7, 64)
    requests = [
        request(f"r{i}", json_schema(object_of(id={"const": f"id-{i}"}, ok={"type": "boolean"})), prompt=prefix, seed=i)
        for i in range(32)
    ]
    outputs = run(engine, *requests)
    assert [json.loads(outputs[f"r{i}"].text)["id"] for i in range(32)] == [f"id-{i}" for i in range(32)]
    assert engine.stats().prefix_hits_total >= 31 * 48


def test_a_hundred_schema_requests_in_turn(plain: Engine) -> None:
    """None fails, all parse: compiled once, a matcher for each request."""
    grammar = json_schema(object_of(n={"type": "integer", "minimum": 0, "maximum": 999}))
    outputs = run(plain, *(request(f"h{i}", grammar, seed=i, max_tokens=40) for i in range(100)))
    assert all(0 <= json.loads(output.text)["n"] <= 999 for output in outputs.values())


@pytest.mark.parametrize("is_counting", [False, True])
def test_a_grammar_that_becomes_too_costly_ends_its_request_alone(
    plain: Engine, monkeypatch: pytest.MonkeyPatch, is_counting: bool
) -> None:
    engine = simulated_engine(EngineConfig(), pace=lambda _: None, tokenizer_path=str(BYTES)) if is_counting else plain
    costly = Grammar(kind=GrammarKind.CHOICE, source='["abcdef"]', param="costly")
    mask = SequenceGrammar.mask

    def limited(grammar: SequenceGrammar) -> Any:
        if len(grammar._token_ids) == 3 and bytes(grammar._token_ids) == b"abc":
            raise GrammarLimitError("too many items")
        return mask(grammar)

    monkeypatch.setattr(SequenceGrammar, "mask", limited)
    outputs = run(engine, request("costly", costly), request("other", GRAMMARS["choice"]))
    assert outputs["costly"].text == "abc" and outputs["costly"].error is not None
    assert outputs["costly"].error[0] == "unsupported" and "too costly" in outputs["costly"].error[1]
    assert outputs["other"].finish_reason is FinishReason.STOP


def test_offline(checkpoint: Path) -> None:
    llm = LLM(str(checkpoint), deterministic=True, num_threads=1, kv_cache_memory_bytes=2**22)
    outputs = llm.generate(["a", "b"], SamplingParams(max_tokens=300, n=2, seed=3), grammar=json_schema(PERSON))
    texts = [choice.text for output in outputs for choice in output.outputs if choice.finish_reason == "stop"]
    assert texts and all(problem(json.loads(text), PERSON) is None for text in texts)
    with pytest.raises(BadRequestError) as caught:
        llm.generate(["a"], grammar=json_schema({"type": "x"}, param="grammar"))
    assert caught.value.param == "grammar.type" and not llm.engine.has_work()
    assert llm.chat([{"role": "user", "content": "x"}], grammar=GRAMMARS["choice"]).text
