"""A simulated worker behind the real door: its steps take what the hardware it stands for would take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tokenmill
from tokenmill.core.errors import SetupError
from tokenmill.core.request import Request, SamplingParams
from tokenmill.cost.steptime.load import step_time_for
from tokenmill.cost.steptime.shape import StepShape
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.operations.worker.arguments import SimulatedConfig, WorkerArgs, parse_worker_args
from tokenmill.operations.worker.main import build_engine
from tokenmill.operations.worker.main import step_time_of as step_time
from tokenmill.recipes.load import load_deployment
from tokenmill.text.tokenizer import Tokenizer

FLASH = SimulatedConfig(hardware="h200_sxm", layout="tp4", priced_as="deepseek-v4-flash", speed=2.0)


def args(**simulated: object) -> WorkerArgs:
    config = FLASH if not simulated else SimulatedConfig(**simulated)
    return WorkerArgs(Path("/tmp"), worker_id="w", name="m", model="", engine="simulated", simulated_config=config)


def test_its_settings_travel_on_the_command_line() -> None:
    assert parse_worker_args(args().to_argv()) == args()


def test_steps_take_what_the_hardware_would_take() -> None:
    shape = StepShape.decode(16, 16 * 1000)
    modelled = step_time_for("deepseek-v4-flash", "h200_sxm", "tp4").step_s(shape)
    assert step_time(args()).step_s(shape) == pytest.approx(modelled / 2)
    assert step_time(args(fixed_s=0.5, per_token_s=0.25)) == LinearStepTime(0.5, 0.25)


def test_it_answers_in_that_time() -> None:
    engine = build_engine(args(fixed_s=0.02, per_token_s=0.0))
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    engine.add(Request(request_id="r", model="m", prompt_token_ids=[1, 2], sampling=sampling))
    deltas = []
    while engine.has_work():
        deltas += engine.step()
    assert [token for delta in deltas for token in delta.token_ids] == [3, 4, 5]
    assert sum(delta.seconds for delta in deltas) >= 0.06


def test_it_takes_every_id_of_the_tokenizer_it_is_given() -> None:
    folder = str(Path(tokenmill.__file__).parent / "models" / "v4_nano")
    named = replace(args(fixed_s=0.0, per_token_s=0.0), model=folder)
    assert build_engine(named).card.vocab_size == Tokenizer.load(folder).vocab_size > 256
    assert build_engine(args(fixed_s=0.0, vocab_size=99)).card.vocab_size == 99
    assert build_engine(args(fixed_s=0.0)).card.vocab_size == 256


@pytest.mark.parametrize(
    ("simulated", "message"),
    [
        ({"hardware": "h200", "priced_as": "deepseek-v4-flash"}, "did you mean 'h200_sxm'"),
        ({"hardware": "h200_sxm", "priced_as": "deepseek-v4-flush"}, "did you mean 'deepseek-v4-flash'"),
        ({"hardware": "l40s", "priced_as": "deepseek-v4-pro"}, "GB too much"),
    ],
)
def test_what_it_cannot_stand_for_ends_the_start(simulated: dict[str, str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        build_engine(args(**simulated))


def test_the_flags_of_serve() -> None:
    config = load_deployment(["m"], flags={"worker": "simulated", "hardware": "h200_sxm"})
    assert config.models[0].worker == "simulated" and config.models[0].simulated.hardware == "h200_sxm"
