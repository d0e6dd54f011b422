"""A tiny random Llama that reads bytes, run under grammars. Not tests themselves."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tiny import write_tiny_llama
from tokenmill.core.grammar import Grammar
from tokenmill.core.request import FinishReason, Request, SamplingParams, TokenDelta, TokenLogprob
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine

BYTES = Path(__file__).parent.parent / "data" / "byte-tokenizer"
VOCAB = 256
EOS = 0
_MAX_STEPS = 20_000


def write_byte_llama(path: Path, *, seed: int = 0) -> Path:
    """Ids are bytes, 0 ends a text."""
    write_tiny_llama(path, vocab_size=VOCAB, eos_token_id=EOS, bos_token_id=None, seed=seed)
    for file in BYTES.iterdir():
        shutil.copy(file, path)
    return path


def byte_engine(path: Path, **settings: Any) -> Engine:
    config = {"deterministic": True, "kv_cache_memory_bytes": 2**22, "num_threads": 1, "max_model_len": 2048}
    return load_engine(path, EngineConfig(**(config | settings)), name="bytes")


def request(
    name: str,
    grammar: Grammar | None = None,
    *,
    prompt: bytes = b"Say something: ",
    seed: int = 0,
    choice_index: int = 0,
    max_tokens: int = 300,
    **sampling: Any,
) -> Request:
    return Request(
        request_id=name,
        model="bytes",
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(**({"max_tokens": max_tokens} | sampling)),
        seed=seed,
        choice_index=choice_index,
        eos_token_ids=(EOS,),
        grammar=grammar,
    )


@dataclass
class Output:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: tuple[str, str] | None = None
    error_param: str | None = None
    num_deltas: int = 0

    @property
    def text(self) -> str:
        return bytes(i for i in self.token_ids if i != EOS).decode()

    def take(self, delta: TokenDelta) -> None:
        self.num_deltas += 1
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        if delta.finish_reason is not None:
            self.finish_reason, self.error, self.error_param = delta.finish_reason, delta.error, delta.error_param


def run(engine: Engine, *requests: Request) -> dict[str, Output]:
    for one in requests:
        engine.add(one)
    return finish(engine, *(one.request_id for one in requests))


def finish(engine: Engine, *names: str) -> dict[str, Output]:
    outputs = {name: Output() for name in names}
    for _ in range(_MAX_STEPS):
        if not engine.has_work():
            break
        for delta in engine.step():
            outputs[delta.request_id].take(delta)
    assert not engine.has_work(), "stalled"
    engine.check_integrity()
    return outputs


def noise(seed: int, length: int) -> bytes:
    return bytes(random.Random(seed).choices(range(32, 127), k=length))
