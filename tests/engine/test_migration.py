"""An answer that goes on in another engine, behind the tokens it has, is the answer that was never disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.structured.engines import byte_engine, noise, request, run, write_byte_llama
from tests.structured.helpers import GRAMMARS, PERSON, json_schema
from tokenmill.core.grammar import Grammar
from tokenmill.core.request import Request
from tokenmill.engine.engine import Engine


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_llama(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def engines(checkpoint: Path) -> tuple[Engine, Engine]:
    """Two workers of one model."""
    return byte_engine(checkpoint, block_size=16), byte_engine(checkpoint, block_size=16, max_num_batched_tokens=24)


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"seed": 3, "top_p": 0.9},
    "penalties": {"seed": 4, "presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    "logprobs": {"seed": 5, "logprobs": 3, "prompt_logprobs": 1},
    "min tokens": {"seed": 6, "min_tokens": 20, "logit_bias": {0: 8.0}},
    "a later choice": {"seed": 7, "choice_index": 2},
}


def check_moves(engines: tuple[Engine, Engine], one: Request, every: int) -> None:
    """Move it after 1, 1 + every, ... tokens: what comes is the rest, log-probabilities and end included."""
    first, second = engines
    whole = run(first, one)[one.request_id]
    assert whole.error is None and len(whole.token_ids) > every, "the case tests nothing"
    for at in range(1, len(whole.token_ids), every):
        rest = run(second, msgspec.structs.replace(one, output_token_ids=list(whole.token_ids[:at])))[one.request_id]
        assert list(whole.token_ids[:at]) + list(rest.token_ids) == list(whole.token_ids), f"moved after {at}"
        assert rest.finish_reason is whole.finish_reason
        assert list(rest.logprobs) == list(whole.logprobs[at:])
        second.clear_cache()


@pytest.mark.parametrize("name", CASES)
def test_moved_equals_undisturbed(engines: tuple[Engine, Engine], name: str) -> None:
    """Seeds are of positions, penalties count what was said, and nothing is said twice (operations R12)."""
    check_moves(engines, request(name, prompt=noise(1, 40), **({"max_tokens": 40} | CASES[name])), 7)


@pytest.mark.requires_llguidance
@pytest.mark.parametrize(
    "grammar", [json_schema(PERSON), GRAMMARS["tree"], GRAMMARS["regex"]], ids=["json schema", "tree", "regex"]
)
def test_moved_under_a_grammar_equals_undisturbed(engines: tuple[Engine, Engine], grammar: Grammar) -> None:
    """Dynamo documents that it can not migrate guided decoding; the grammar goes along the tokens that are there."""
    check_moves(engines, request("g", grammar, prompt=noise(2, 33), seed=1, max_tokens=60), 5)


def test_a_moved_answer_reuses_what_the_other_worker_holds(engines: tuple[Engine, Engine]) -> None:
    """Of the output, too: hashes go on over the tokens that came with it."""
    first, _ = engines
    first.clear_cache()
    one = request("r", prompt=noise(3, 40), seed=1, max_tokens=50, ignore_eos=True)
    whole = run(first, one)["r"]
    before = first.stats().prefix_hits_total
    run(first, msgspec.structs.replace(one, output_token_ids=list(whole.token_ids[:45])))
    assert first.stats().prefix_hits_total - before == 80
