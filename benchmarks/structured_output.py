"""Structured output on a real model: do answers keep to their schemas, do they end, and what do the masks cost?

    python benchmarks/structured_output.py smollm2 [--bfcl bfcl_eval.whl]

The schemas are drawn from seeds; with a wheel (or folder) of the package bfcl-eval half of them are its functions.
Every answer that ends is checked against its schema by an oracle of its own, every other one against the grammar. The
last line is one JSON object. CPU time is that of the whole process in the steps, grammars compiled beforehand.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.structured.schemas import draw_schema
from tests.structured.validator import problem
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.core.request import FinishReason, Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine
from tokenmill.engine.runners.torch_runner import TorchRunner
from tokenmill.engine.structured.base import GRAMMAR_BACKENDS
from tokenmill.models.store import resolve_model
from tokenmill.text.chat import load_encoding
from tokenmill.text.tokenizer import Tokenizer

_BFCL_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "any": None,
    "hashmap": "object",
    "long": "integer",
}
_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


@dataclass
class Case:
    schema: Any
    question: str
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def grammar(self) -> Grammar:
        return Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(self.schema, ensure_ascii=False))


@dataclass
class Measured:
    wall_s: float = 0.0
    step_cpu_s: float = 0.0
    mask_cpu_s: float = 0.0
    num_masks: int = 0
    num_tokens: int = 0
    step_s: list[float] = field(default_factory=list)


def drawn_cases(num: int) -> list[Case]:
    question = "Answer with JSON that meets this schema: {}"
    schemas = [draw_schema(seed) for seed in range(num)]
    return [Case(schema, question.format(json.dumps(schema)[:600])) for schema in schemas]


def bfcl_cases(path: Path, num: int, seed: int) -> list[Case]:
    """Functions of the set as strict schemas, with the questions that belong to them."""
    cases = []
    for entry in _bfcl_entries(path):
        function = entry["function"][0]
        schema = _closed(function["parameters"])
        question = entry["question"][0][-1]["content"]
        cases.append(Case(schema, f"{question}\nAnswer with the arguments of {function['name']} as JSON."))
    return random.Random(seed).sample(cases, min(num, len(cases)))


def _bfcl_entries(path: Path) -> Iterator[Any]:
    names = ("simple_python", "multiple", "live_simple", "simple_java", "simple_javascript")
    for name in names:
        inner = f"bfcl_eval/data/BFCL_v4_{name}.json"
        text = (path / inner).read_text() if path.is_dir() else zipfile.ZipFile(path).read(inner).decode()
        yield from map(json.loads, text.splitlines())


def _closed(schema: Any) -> Any:
    """JSON Schema out of the set's own words; objects take no further properties, as strict functions do."""
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    kind = _BFCL_TYPES.get(str(kind).lower(), str(kind).lower())
    result: dict[str, Any] = {"type": kind} if kind in _JSON_TYPES else {}
    if "properties" in schema:
        result["properties"] = {name: _closed(inner) for name, inner in schema["properties"].items()}
        result["additionalProperties"] = False
        result["required"] = [name for name in schema.get("required", ()) if name in schema["properties"]]
    if kind == "array" and isinstance(schema.get("items"), dict):
        result["items"] = _closed(schema["items"])
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        result["enum"] = schema["enum"]
        result.pop("type", None)
    return result


def run(
    engine: Engine,
    prompts: Sequence[list[int]],
    cases: Sequence[Case],
    *,
    concurrency: int,
    max_tokens: int,
    held: bool,
) -> Measured:
    """Keep `concurrency` requests in flight until all cases are done."""
    runner = engine.runner
    assert isinstance(runner, TorchRunner)
    measured, waiting, open_ids = Measured(), list(range(len(cases)))[::-1], set()
    mask_cpu_s, num_masks, start_s = runner.masks.cpu_s, runner.masks.num_masks, time.perf_counter()
    while waiting or open_ids:
        while waiting and len(open_ids) < concurrency:
            i = waiting.pop()
            engine.add(
                Request(
                    request_id=str(i),
                    model="bench",
                    prompt_token_ids=prompts[i],
                    sampling=SamplingParams(max_tokens=max_tokens),
                    seed=i,
                    eos_token_ids=engine.card.eos_token_ids,
                    grammar=cases[i].grammar if held else None,
                )
            )
            open_ids.add(str(i))
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        deltas = engine.step()
        measured.step_cpu_s += time.process_time() - cpu_s
        measured.step_s.append(time.perf_counter() - wall_s)
        for delta in deltas:
            measured.num_tokens += len(delta.token_ids)
            case = cases[int(delta.request_id)]
            if held:
                case.token_ids += delta.token_ids
            if delta.finish_reason is not None:
                open_ids.discard(delta.request_id)
                if held:
                    case.finish_reason, case.error = delta.finish_reason, delta.error and delta.error[1]
    measured.wall_s = time.perf_counter() - start_s
    measured.mask_cpu_s, measured.num_masks = runner.masks.cpu_s - mask_cpu_s, runner.masks.num_masks - num_masks
    return measured


def check(cases: Sequence[Case], tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    backend = GRAMMAR_BACKENDS.load("llguidance")(tokenizer, vocab_size)
    counts = {"ended": 0, "valid": 0, "cut": 0, "valid_beginnings": 0, "errors": 0}
    faults = []
    for case in cases:
        if case.error is not None:
            counts["errors"] += 1
            faults.append(case.error)
        elif case.finish_reason is FinishReason.STOP:
            counts["ended"] += 1
            ids = [token_id for token_id in case.token_ids if token_id not in tokenizer.eos_token_ids]
            found = problem(json.loads(tokenizer.decode(ids)), case.schema)
            counts["valid"] += found is None
            faults += [] if found is None else [found]
        else:
            counts["cut"] += 1
            matcher = backend.compile(case.grammar).new_matcher()
            counts["valid_beginnings"] += matcher.num_allowed(case.token_ids) == len(case.token_ids)
    return counts | {"faults": faults[:5]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bfcl", type=Path, help="wheel or folder of bfcl-eval")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=512)
    args = parser.parse_args()
    cases = bfcl_cases(args.bfcl, args.num // 2, seed=0) if args.bfcl else []
    cases += drawn_cases(args.num - len(cases))
    engine = load_engine(resolve_model(args.model), EngineConfig(max_num_seqs=args.concurrency), name="bench")
    assert engine.card.tokenizer_path is not None
    tokenizer = Tokenizer.load(engine.card.tokenizer_path)
    encoding = load_encoding(engine.card.chat_encoding, tokenizer)
    prompts = [encoding.encode([{"role": "user", "content": case.question}]) for case in cases]

    def measure(held: bool, max_tokens: int, num: int = len(cases)) -> Measured:
        return run(engine, prompts, cases[:num], concurrency=args.concurrency, max_tokens=max_tokens, held=held)

    print(f"{len(cases)} schemas, concurrency {args.concurrency}: compiling, then free text, then held to the schemas")
    measure(True, 1)
    for case in cases:
        case.token_ids.clear()
    free = measure(False, 64, args.concurrency)
    engine.clear_cache()
    held = measure(True, args.max_tokens)
    tokenizer.eos_token_ids = engine.card.eos_token_ids
    counts = check(cases, tokenizer, engine.card.vocab_size)
    report = {
        "benchmark": "structured_output",
        "model": args.model,
        "num_schemas": len(cases),
        "num_bfcl": len(cases) - (args.num - args.num // 2 if args.bfcl else args.num),
        "concurrency": args.concurrency,
        "max_tokens": args.max_tokens,
        **counts,
        "ended_share": round(counts["ended"] / len(cases), 4),
        "mask_share_of_step_cpu": round(held.mask_cpu_s / held.step_cpu_s, 4),
        "mask_us": round(1e6 * held.mask_cpu_s / max(1, held.num_masks), 1),
        "step_ms_median": round(1e3 * statistics.median(held.step_s), 2),
        "step_ms_max": round(1e3 * max(held.step_s), 2),
        "held_tok_per_s": round(held.num_tokens / held.wall_s, 1),
        "free_tok_per_s": round(free.num_tokens / free.wall_s, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
