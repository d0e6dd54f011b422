"""A recorded run, of a real model and of a modelled one, plans the same again; a changed one is noticed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.tiny import write_tiny_llama
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine
from tokenmill.engine.simulated import simulated_engine
from tokenmill.sim.plan_replay import replay_plans


def settings(path: Path, **changes: object) -> EngineConfig:
    """Small enough for chunks, waiting and preemption."""
    fields = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 16, "plan_log": str(path)}
    return EngineConfig(**(fields | changes))  # type: ignore[arg-type]


def run(engine: Engine, num_requests: int = 12) -> None:
    rng = random.Random(5)
    shared = [rng.randrange(3, 200) for _ in range(24)]
    for index in range(num_requests):
        prompt = shared[: rng.choice([0, 16, 24])] + [rng.randrange(3, 200) for _ in range(rng.randint(1, 40))]
        engine.add(
            Request(
                request_id=f"r{index}",
                model="m",
                prompt_token_ids=prompt,
                sampling=SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 12), ignore_eos=True),
            )
        )
        for _ in range(rng.randint(0, 4)):
            engine.step()
        if index == 7:
            engine.abort("r6")
    while engine.has_work():
        engine.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    model = write_tiny_llama(folder / "model")
    run(load_engine(model, settings(folder / "real.jsonl", kv_cache_memory_bytes=1 << 17), name="m"))
    return folder / "real.jsonl"


def test_a_real_run_plans_the_same_again(recorded: Path) -> None:
    replayed = replay_plans(recorded)
    assert replayed.difference is None and replayed.num_requests == 12 and replayed.num_steps > 20


def test_a_modelled_run_plans_the_same_again(tmp_path: Path) -> None:
    run(simulated_engine(settings(tmp_path / "log.jsonl"), pace=lambda seconds: None, kv_tokens=160, max_model_len=120))
    replayed = replay_plans(tmp_path / "log.jsonl")
    assert replayed.difference is None and replayed.num_steps > 20


def test_a_run_that_differs_is_noticed_with_its_line(recorded: Path, tmp_path: Path) -> None:
    lines = recorded.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if number > 30 and '"plan"' in line)
    changed = json.loads(lines[at])
    changed["plan"][0][2] += 1
    (tmp_path / "changed.jsonl").write_text("\n".join([*lines[:at], json.dumps(changed), *lines[at + 1 :]]))
    assert f"line {at + 1}:" in str(replay_plans(tmp_path / "changed.jsonl").difference)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="no plan log"):
        replay_plans(tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        replay_plans(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="cannot be written"):
        simulated_engine(settings(tmp_path / "no" / "log.jsonl"))
