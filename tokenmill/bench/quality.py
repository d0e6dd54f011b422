"""`bench quality`: how good a model's answers are and how well its drafts hold, greedily, through the engine.

Every figure comes out of engine steps, so weights in few bits or caches in fp8 show in it. A comparison with a
reference model (KL of the logits) can join here beside `perplexity`. Not responsible for: questions (quality_set).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenmill.bench.environment import describe_environment
from tokenmill.bench.quality_run import Answer, Question, ask
from tokenmill.bench.quality_set import QualitySet, ToolCase
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine
from tokenmill.models.store import resolve_model
from tokenmill.text.chat import load_encoding
from tokenmill.text.parsers.chain import ChainedParser
from tokenmill.text.parsers.deepseek_v4 import reasoning_parser, tool_parser
from tokenmill.text.parsers.events import ParsedCall, collect
from tokenmill.text.tokenizer import Tokenizer

#: The first copied tokens say which passage is meant.
_NUM_CUES = 2
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


@dataclass(frozen=True, slots=True)
class QualityBench:
    """
    engine      settings of EngineConfig; speculation is set by the bench itself
    num_drafts  draft lengths k at which acceptance is measured; () leaves it out
    distances   of copying, in tokens
    osl         tokens that continue each prompt
    """

    model: str = "v4-nano"
    engine: dict[str, Any] = field(default_factory=dict)
    num_drafts: tuple[int, ...] = (1, 2, 3)
    distances: tuple[int, ...] = (256, 1024, 4096)
    osl: int = 96
    num_tool_calls: int = 120

    def check(self) -> None:
        if "speculative_config" in self.engine:
            raise ConfigError("bench quality sets speculative_config itself: leave it out, and give --num-drafts")


def run_quality_bench(bench: QualityBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; `tell` gets a line per stage. The result is JSON-able."""
    bench.check()
    engine, tokenizer = _load(bench, None)
    questions = QualitySet.load(tokenizer)
    tell("perplexity")
    nats = {domain: _nats(engine, texts) for domain, texts in questions.texts.items()}
    tell("copying")
    copied = {str(d): _copy_accuracy(engine, questions, tokenizer, d) for d in bench.distances}
    tell("tool calls")
    validity, exact = _tool_calls(engine, tokenizer, questions.tool_cases[: bench.num_tool_calls])
    acceptance = {}
    for k in bench.num_drafts:
        tell(f"acceptance of {k} drafts")
        acceptance[str(k)] = _acceptance(bench, questions, k)
    return {
        "bench": "quality",
        "settings": asdict(bench),
        "environment": describe_environment(),
        "model": {"name": engine.card.name, "weights": engine.card.weights_version, "dtype": engine.card.dtype},
        "hard_domain": questions.hard_domain,
        "nats_per_token": {domain: round(value, 4) for domain, value in nats.items()},
        "perplexity": {domain: round(math.exp(value), 3) for domain, value in nats.items()},
        "mtp_acceptance_length": acceptance,
        "tool_call_validity": validity,
        "tool_call_exact": exact,
        "copy_accuracy": copied,
    }


def _load(bench: QualityBench, speculation: dict[str, Any] | None) -> tuple[Engine, Tokenizer]:
    config = EngineConfig.parse(bench.engine | ({"speculative_config": speculation} if speculation else {}))
    engine = load_engine(resolve_model(bench.model), config, name=bench.model)
    if engine.card.tokenizer_path is None:
        raise ConfigError(f"{bench.model} has no tokenizer, and bench quality asks in text: choose another model")
    return engine, Tokenizer.load(engine.card.tokenizer_path)


# -- perplexity and copying: the model reads --


def _nats(engine: Engine, texts: Sequence[list[int]]) -> float:
    """Mean negative log-probability of every token but the first of each text."""
    logprobs = [p.logprob for answer in _read(engine, texts) for p in answer.prompt_logprobs]
    return -sum(logprobs) / len(logprobs)


def _copy_accuracy(engine: Engine, questions: QualitySet, tokenizer: Tokenizer, distance: int) -> float | None:
    """Share of the second copy's tokens that are the model's first choice, the true ones standing before them; None
    when the model's context is too short."""
    cases = questions.copy_cases(tokenizer, distance)
    if max(len(case.token_ids) for case in cases) >= engine.card.max_model_len:
        return None
    is_right = []
    for case, answer in zip(cases, _read(engine, [case.token_ids for case in cases]), strict=True):
        # prompt_logprobs begin with the second token
        rest = answer.prompt_logprobs[case.begin - 1 + _NUM_CUES :]
        is_right += [p.top[0][0] == p.token_id for p in rest]
    return round(sum(is_right) / len(is_right), 4)


def _read(engine: Engine, texts: Sequence[list[int]]) -> list[Answer]:
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    return ask(engine, [Question(ids, sampling) for ids in texts])


# -- tool calls --


def _tool_calls(engine: Engine, tokenizer: Tokenizer, cases: Sequence[ToolCase]) -> tuple[float | None, float | None]:
    """(share of answers that are one well-formed call, share with the arguments asked for); None for a model whose
    calls are written in another format."""
    if engine.card.tool_parser != "deepseek_v4" or not cases:
        return None, None
    encoding = load_encoding(engine.card.chat_encoding, tokenizer)
    sampling = SamplingParams(temperature=0.0, max_tokens=160)
    prompts = [
        encoding.encode([{"role": "user", "content": case.request}], tools=[case.tool], thinking=case.is_thinking)
        for case in cases
    ]
    answers = ask(engine, [Question(ids, sampling) for ids in prompts])
    calls = [_only_call(tokenizer, answer, case) for answer, case in zip(answers, cases, strict=True)]
    valid = [call is not None and _is_well_formed(call, case) for call, case in zip(calls, cases, strict=True)]
    exact = [
        ok and call is not None and json.loads(call.arguments) == case.arguments
        for ok, call, case in zip(valid, calls, cases, strict=True)
    ]
    return round(sum(valid) / len(valid), 4), round(sum(exact) / len(exact), 4)


def _only_call(tokenizer: Tokenizer, answer: Answer, case: ToolCase) -> ParsedCall | None:
    text = tokenizer.decode(answer.token_ids)
    parser = ChainedParser(reasoning_parser(case.is_thinking, has_tools=True), tool_parser([case.tool]))
    message = collect([*parser.feed(text), *parser.finish()])
    calls = message.tool_calls
    return calls[0] if len(calls) == 1 and calls[0].is_complete and not message.content.strip() else None


def _is_well_formed(call: ParsedCall, case: ToolCase) -> bool:
    """The declared name, all declared parameters and no other, each of its type."""
    function = case.tool["function"]
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return False
    properties = function["parameters"]["properties"]
    if call.name != function["name"] or not isinstance(arguments, dict) or set(arguments) != set(properties):
        return False
    return all(_has_type(arguments[name], schema["type"]) for name, schema in properties.items())


def _has_type(value: Any, name: str) -> bool:
    return isinstance(value, _JSON_TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


# -- drafts --


def _acceptance(bench: QualityBench, questions: QualitySet, num_drafts: int) -> dict[str, float]:
    """Tokens per verification of `num_drafts` MTP drafts, greedily: 1 and the accepted ones."""
    engine, _ = _load(bench, {"method": "mtp", "num_speculative_tokens": num_drafts, "adaptive": False})
    sampling = SamplingParams(temperature=0.0, max_tokens=bench.osl)
    found, all_lengths = {}, []
    for domain, prompts in questions.prompts.items():
        answers = ask(engine, [Question(ids, sampling) for ids in prompts])
        # The last steps of a text may have room for fewer drafts.
        lengths = [1 + v.accepted for answer in answers for v in answer.verifications if v.drafted == num_drafts]
        found[domain] = round(sum(lengths) / max(1, len(lengths)), 4)
        all_lengths += lengths
    return {"overall": round(sum(all_lengths) / max(1, len(all_lengths)), 4), **found}
