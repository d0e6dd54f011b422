"""Engines with and without speculation over the same tiny checkpoints."""

from __future__ import annotations

import random

import pytest

from tests.tiny import write_tiny_llama
from tokenmill.core.request import Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine

BLOCK = 16
VOCAB = 256
_REQUEST_FIELDS = ("prediction_token_ids", "session_id", "grammar", "eos_token_ids", "tenant")
PATHS = {"reference": {"deterministic": True}, "native": {"kernels": "native"}}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("target"), vocab_size=VOCAB)


def engine_of(checkpoint, speculative=None, path="reference", **settings) -> Engine:
    config = {"block_size": BLOCK, "max_model_len": 256, "kv_cache_memory_bytes": 2**22, "num_threads": 1}
    config |= {**PATHS[path], **settings, "speculative_config": speculative}
    return load_engine(checkpoint, EngineConfig.parse(config), name="tiny")


def prompt_of(seed: int, length: int, vocab_size: int = VOCAB) -> list[int]:
    return random.Random(seed).choices(range(2, vocab_size), k=length)


def request(name: str, prompt: list[int], max_tokens: int = 24, seed: int = 0, **sampling) -> Request:
    fields = {name: sampling.pop(name) for name in _REQUEST_FIELDS if name in sampling}
    return Request(
        request_id=name,
        model="tiny",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**{"temperature": 0.0, "logprobs": 2, "max_tokens": max_tokens, **sampling}),
        seed=seed,
        **fields,
    )


class Output:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[object] = []
        self.prompt_logprobs: list[object] = []
        self.finish: object = None
        self.num_cached: int | None = None
        self.num_drafts = 0
        self.num_rejected = 0

    @property
    def said(self) -> tuple[object, ...]:
        return self.ids, self.logprobs, self.prompt_logprobs, self.finish


def run(engine: Engine, *requests: Request, preempt_at: frozenset[int] = frozenset()) -> dict[str, Output]:
    outputs = {one.request_id: Output() for one in requests}
    for one in requests:
        engine.add(one)
    for step in range(20_000):
        if not engine.has_work():
            break
        if step in preempt_at and engine._scheduler._running:
            engine._scheduler._preempt(engine._scheduler._running[-1])
        for delta in engine.step():
            out = outputs[delta.request_id]
            out.ids.extend(delta.token_ids)
            out.logprobs.extend(delta.logprobs or ())
            out.prompt_logprobs.extend(delta.prompt_logprobs or ())
            out.finish = delta.finish_reason or out.finish
            out.num_drafts += delta.num_draft_tokens
            out.num_rejected += delta.num_rejected_tokens
            assert delta.error is None, delta.error
            if delta.num_cached_tokens is not None:
                out.num_cached = delta.num_cached_tokens
        engine.check_integrity()
    assert not engine.has_work()
    return outputs
