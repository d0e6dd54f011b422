"""Write the model card from what was measured: corpus, training log, `bench quality`, trigram baseline.

    tokenmill bench quality --model build/v4-nano/model --output build/quality.json
    python -m training.card --model build/v4-nano/model --corpus build/corpus --log build/v4-nano/log.jsonl \\
        --quality build/quality.json

An event {"step": ..., "note": ...} in the log is told on the card.
Not responsible for: measuring (tokenmill/bench/quality.py, ngram.py).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from tokenmill.bench.quality_set import QualitySet
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.weights import allocate, count_parameters
from tokenmill.text.tokenizer import Tokenizer
from training.model import read_config
from training.ngram import nats_of_texts

#: What the project wants of this model: (figure, at least).
GOALS = {"trigram_ratio": 2.0, "mtp_overall": 1.8, "mtp_hard": 1.5, "tool_call_validity": 0.95}


def card(model: Path, corpus: Path, log: Path, quality: Path) -> str:
    measured = json.loads(quality.read_text("utf-8"))
    events = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    about = json.loads((corpus / "corpus.json").read_text("utf-8"))
    texts = QualitySet.load(Tokenizer.load(corpus / "tokenizer")).texts[measured["hard_domain"]]
    trigram = math.exp(nats_of_texts(corpus, measured["hard_domain"], texts))
    parts = [
        _head(read_config(model / "config.json")),
        _results(measured, trigram),
        _domains(measured),
        _training(events, about),
        _LIMITS,
    ]
    return "\n".join(parts)


def _head(config: dict[str, Any]) -> str:
    parsed = DeepseekV4Config.from_dict(config)
    weights = allocate(parsed, _float32(), num_mtp=1, device="meta")
    ratios = ", ".join({0: "sliding", 4: "CSA (4)"}.get(r, f"HCA ({r})") for r in parsed.compress_ratios)
    return f"""# v4-nano

A DeepSeek V4 in {count_parameters(weights) / 1e6:.2f} million parameters, trained by this repository (`training/`) to
make every feature of the architecture real and measurable on a laptop. It was trained on small stories, chats, simple
tool calls and Python code, and knows next to nothing; below is how far it came.

| | |
|---|---|
| layers | {ratios}; then one MTP block |
| width | {parsed.hidden_size}, {parsed.hc_mult} residual streams (mHC) |
| attention | {parsed.num_attention_heads} heads of {parsed.head_dim}, window {parsed.sliding_window}, indexer keeps \
{parsed.index_topk} entries |
| experts | {parsed.n_routed_experts} routed, {parsed.num_experts_per_tok} per token, 1 shared; \
{sum(parsed.hash_layers)} hash layer |
| vocabulary | {parsed.vocab_size} byte-level BPE pieces, DeepSeek V4's special tokens and chat encoding |
| context | {parsed.max_position_embeddings} tokens |
| weights | bfloat16, hub tensor names; transformers' `deepseek_v4` gives the same logits |
| licence | Apache-2.0, as the repository |
"""


def _mean(steps: list[dict[str, Any]], name: str) -> float:
    values = [step[name] for step in steps[-10:]]
    return sum(values) / len(values)


def _float32() -> Any:
    import torch

    return torch.float32


def _results(measured: dict[str, Any], trigram: float) -> str:
    hard, acceptance = measured["hard_domain"], measured["mtp_acceptance_length"]
    ours = measured["perplexity"][hard]
    got = {
        "trigram_ratio": trigram / ours,
        "mtp_overall": acceptance["1"]["overall"],
        "mtp_hard": acceptance["1"][hard],
        "tool_call_validity": measured["tool_call_validity"],
    }
    names = {
        "trigram_ratio": f"hard domain: perplexity of a Kneser-Ney trigram ({trigram:.2f}) over ours ({ours:.2f})",
        "mtp_overall": "tokens per step with 1 MTP draft, all domains",
        "mtp_hard": "the same, hard domain",
        "tool_call_validity": "well-formed tool calls",
    }
    rows = [
        f"| {names[name]} | {got[name]:.3f} | {goal} | {'reached' if got[name] >= goal else '**missed**'} |"
        for name, goal in GOALS.items()
    ]
    copied = ", ".join(f"{_percent(share)} over {d} tokens" for d, share in measured["copy_accuracy"].items())
    return "\n".join(
        [
            "## Measured",
            "",
            "By `tokenmill bench quality --model v4-nano`, greedily, through the engine. The hard domain is held-out",
            f"files of Python {measured['environment']['python']}'s library; the trigram saw the same training files.",
            "",
            "| | measured | goal | |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Tool calls with exactly the arguments that were asked for: {_percent(measured['tool_call_exact'])}. "
            f"Tokens copied rightly: {copied}.",
            "",
        ]
    )


def _domains(measured: dict[str, Any]) -> str:
    acceptance = measured["mtp_acceptance_length"]
    rows = [
        f"| {domain} | {measured['nats_per_token'][domain]:.3f} | {perplexity:.2f} | "
        + " | ".join(f"{lengths[domain]:.2f}" for lengths in acceptance.values())
        + " |"
        for domain, perplexity in measured["perplexity"].items()
    ]
    total = " | ".join(f"{lengths['overall']:.2f}" for lengths in acceptance.values())
    ks = " | ".join(f"tokens per step, k = {k}" for k in acceptance)
    head = [f"| held-out domain | nats per token | perplexity | {ks} |", f"|---|---|---|{'---|' * len(acceptance)}"]
    return "\n".join([*head, *rows, f"| all | | | {total} |", ""])


def _training(events: list[dict[str, Any]], about: dict[str, Any]) -> str:
    runs = [event for event in events if "run" in event]
    steps = [event for event in events if "s_per_step" in event]
    last, run = steps[-1], runs[-1]["run"]
    tokens = last["step"] * run["rows"] * run["length"]
    parts = [
        "## Training",
        "",
        f"{last['step']} steps of {tokens // last['step']} tokens ({tokens / 1e6:.1f} million), seed {run['seed']}, on",
        f"rows of {run['length']} tokens, in the last {run['long_steps']} steps of {run['long_length']}; two processes",
        "on two cores that were shared with other work; products in bfloat16.",
        f"Mean losses of the last steps logged, in nats over the mixture: {_mean(steps, 'loss'):.3f} next token,",
        f"{_mean(steps, 'mtp'):.3f} token after next.",
        "Muon for matrices, AdamW for the rest; warm-up, constant, linear to zero; router biases balance the experts;",
        "the indexer learns to rank entries as attention does.",
        "",
    ]
    notes = [f"- step {event['step']}: {event['note']}" for event in events if "note" in event]
    if notes:
        parts += ["Changed by hand on the way, so that one run of the command does not give these very weights:", ""]
        parts += [*notes, ""]
    rows = [f"| {name} | {n['train'] / 1e6:.2f} |" for name, n in about["tokens"].items()]
    data = [
        f"Data: Python {about['python']}'s library and manual (PSF licence; read where Python is installed, not stored",
        "here), and documents written by the generators of `training/corpus`. Tokens to draw from:",
    ]
    return "\n".join([*parts, *data, "", "| domain | million tokens |", "|---|---|", *rows, ""])


_LIMITS = """## Limits

It is a test instrument. It makes up facts, computes sums wrongly, and follows no instruction beyond the kinds it was
trained on. English and Python only. Trained on rows of up to 2,048 tokens: longer contexts run, but were not learnt.
"""


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "corpus", "log", "quality"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    (args.model / "README.md").write_text(card(args.model, args.corpus, args.log, args.quality), "utf-8")


if __name__ == "__main__":
    main()
