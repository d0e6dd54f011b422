"""`tokenmill generate`: complete prompts in this process, without a server."""

from __future__ import annotations

import sys
import time
from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, count_progress, note, print_json


def add_to(app: typer.Typer) -> None:
    app.command()(generate)


def generate(
    model: str = typer.Argument(help="Alias, path or hf:organisation/name."),
    prompts: list[str] = typer.Option([], "--prompt", "-p", help="A prompt; several are run together."),
    chat: bool = typer.Option(False, "--chat", help="Render each prompt as one user message."),
    max_tokens: int = typer.Option(128, help="Most output tokens per prompt."),
    temperature: float = typer.Option(0.0, help="0 is greedy."),
    top_p: float = typer.Option(1.0, help="Nucleus sampling."),
    seed: int | None = typer.Option(None, help="Same seed, same draws."),
    n: int = typer.Option(1, "--n", "-n", help="Choices per prompt."),
    stop: list[str] = typer.Option([], help="Stop before this text; may be given again."),
    deterministic: bool = typer.Option(False, "--deterministic", help="Same text whatever else is in the batch."),
    price_per_hour: float | None = typer.Option(None, help="Dollars per hour of this machine."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Complete prompts (from --prompt, or stdin, one per line)."""
    texts = prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    from tokenmill.core.errors import BadRequestError
    from tokenmill.core.request import SamplingParams
    from tokenmill.llm import LLM

    if not texts:
        raise BadRequestError("there is no prompt: give --prompt TEXT, or lines on stdin")
    llm = LLM(_fetched(model), deterministic=deterministic, price_per_hour=price_per_hour)
    sampling = SamplingParams(
        temperature=temperature, top_p=top_p, seed=seed, n=n, stop=tuple(stop), max_tokens=max_tokens
    )
    batch: list[Any] = [_encode_chat(llm, text) for text in texts] if chat else list(texts)
    began_s = time.perf_counter()
    with count_progress("generating") as progress:
        outputs = llm.generate(batch, sampling, on_progress=progress)
    _show(texts, outputs, time.perf_counter() - began_s, as_json=as_json)


def _fetched(model: str) -> str:
    """Fetch with a progress bar; the LLM then finds it in place."""
    from tokenmill.cli.output import download_progress
    from tokenmill.models.store import resolve_model

    with download_progress() as progress:
        resolve_model(model, progress)
    return model


def _encode_chat(llm: Any, text: str) -> list[int]:
    from tokenmill.core.errors import CapabilityError
    from tokenmill.text.chat import load_encoding

    if llm.tokenizer is None:
        raise CapabilityError("--chat needs a model with a tokenizer: leave it away, or serve another model")
    encoding = load_encoding(llm.engine.card.chat_encoding, llm.tokenizer)
    return list(encoding.encode([{"role": "user", "content": text}]))


def _show(texts: list[str], outputs: list[Any], seconds: float, *, as_json: bool) -> None:
    choices = [choice for output in outputs for choice in output.outputs]
    num_tokens = sum(len(choice.token_ids) for choice in choices)
    usd = sum(choice.usd for choice in choices)
    if as_json:
        results = [_result(text, output) for text, output in zip(texts, outputs, strict=True)]
        print_json({"results": results, "seconds": seconds, "output_tok_s": num_tokens / seconds, "usd": usd})
        return
    for text, output in zip(texts, outputs, strict=True):
        for choice in output.outputs:
            print(choice.text if len(choices) == 1 else f"[{text[:40]}] {choice.text}")
    note(
        f"{num_tokens} tokens in {seconds:.2f} s: {num_tokens / seconds:.1f} tok/s, ${usd:.6f}, "
        f"${usd / max(1, num_tokens) * 1e6:.2f} per million output tokens"
    )


def _result(text: str, output: Any) -> dict[str, Any]:
    choices = [
        {
            "text": choice.text,
            "token_ids": choice.token_ids,
            "finish_reason": choice.finish_reason,
            "num_cached_tokens": choice.num_cached_tokens,
            "usd": choice.usd,
        }
        for choice in output.outputs
    ]
    return {"prompt": text, "num_prompt_tokens": len(output.prompt_token_ids), "choices": choices}
