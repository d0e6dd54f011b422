"""The roofline of a worker: published formulas by hand, monotone in everything, cheap spans equal to single steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.core.step import SequencePlan, StepPlan
from tokenmill.cost.steptime.acceptance import acceptance_length
from tokenmill.cost.steptime.efficiency import Efficiency, default_efficiency
from tokenmill.cost.steptime.load import step_time_for
from tokenmill.cost.steptime.parallel import Parallel, check_fits, max_sequences
from tokenmill.cost.steptime.roofline import RooflineStepTime
from tokenmill.cost.steptime.shape import StepShape
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.models.priced import describe_model

CATALOGUE = load_catalogue(environ={})
PRO = describe_model("deepseek-v4-pro")
GB300 = CATALOGUE.get("gb300_nvl72")
PERFECT = Efficiency(1.0, 1.0, 1.0, 1.0, op_s=0.0, hop_s=0.0, exchange_hop_s=0.0)


def perfect(layout: str) -> RooflineStepTime:
    return RooflineStepTime(PRO, GB300, Parallel.parse(layout), PERFECT)


def test_parts_by_hand() -> None:
    """24 GB of dense weights are 3 ms on every device under DP attention, and an eighth of it under TP."""
    shape = StepShape.decode(8, 8 * 8191)
    assert perfect("dep8").parts(shape)["dense"] == pytest.approx(PRO.dense_bytes / 8e12)
    assert 2.8e-3 < PRO.dense_bytes / 8e12 < 3.6e-3
    assert perfect("tp8").parts(shape)["dense"] == pytest.approx(PRO.dense_bytes / 8 / 8e12)
    hit = 1 - (1 - 6 / 384) ** 8
    assert perfect("tp8").parts(shape)["experts"] == pytest.approx(PRO.expert_bytes * hit / 8 / 8e12)
    assert perfect("dep8").parts(shape)["experts"] > perfect("tp8").parts(shape)["experts"]  # the fullest device
    # One latent head: every device of a TP worker reads all of the cache; a DP device computes for its own sequences.
    assert perfect("tp8").parts(shape)["cache"] == pytest.approx(8 * PRO.read_bytes(8192) / 8e12)
    assert perfect("dep8").parts(shape)["cache"] == pytest.approx(PRO.attention_flops(8192) / 2.5e15)
    assert PRO.read_bytes(8192) / 8e12 < PRO.attention_flops(8192) / 2.5e15  # 128 heads on one key: bound by compute


def test_exchange_by_hand() -> None:
    """TP: two ring all-reduces of bf16 rows per layer. EP: 3 bytes per channel to each other rank a row visits."""
    tp = perfect("tp8").parts(StepShape.decode(100, 1))["exchange"]
    assert tp == pytest.approx(100 * 2 * 61 * 2 * 7 / 8 * 7168 * 2 / 900e9)
    visited = 16 * (1 - (15 / 16) ** 6)
    ep = perfect("dep16").parts(StepShape.decode(160, 1))["exchange"]
    assert ep == pytest.approx(160 / 16 * 61 * 7168 * 3 * visited * 15 / 16 / 900e9)
    far = RooflineStepTime(PRO, CATALOGUE.get("b300_sxm"), Parallel.parse("dep16"), PERFECT)
    assert far.parts(StepShape.decode(160, 1))["exchange"] > 3 * ep  # half of it goes over the network


def test_prefill_is_bound_by_compute() -> None:
    shape = StepShape.prefill(8192, num_seqs=8)
    flops = 2 * (PRO.dense_params / 5e15 + PRO.active_expert_params / 15e15)
    parts = perfect("dep8").parts(shape)
    assert parts["experts"] + parts["dense"] == pytest.approx(8192 * flops)
    assert parts["cache"] == pytest.approx(8192 * PRO.attention_flops(4096.5, is_prefill=True) / 2.5e15)


def test_drafts_cost_rows_and_their_own_block() -> None:
    step_time = step_time_for("deepseek-v4-pro", "gb300_nvl72", "dep8")
    plain, drafted = (step_time.step_s(StepShape.decode(64, 64 * 8192, n)) for n in (0, 64 * 2))
    assert plain < drafted < 1.5 * plain
    assert acceptance_length(2) == 2.27 and acceptance_length(0, "none") == 1.0
    with pytest.raises(ConfigError, match=r"mtp \(0 to 5 drafts\)"):
        acceptance_length(6)


LAYOUTS = ("tp8", "tep8", "dep8", "dep16")
STEPS = {layout: step_time_for("deepseek-v4-pro", "gb300_nvl72", layout) for layout in LAYOUTS}
STEPS["llama"] = step_time_for("llama-3.1-8b", "h100_sxm")
STEPS["oss"] = step_time_for("gpt-oss-120b", "mi300x", "tp2")

SHAPES = st.builds(
    lambda chunk, chunks, behind, batch, context, drafts: StepShape(
        chunk * chunks,
        chunks if chunk else 0,
        (chunk * behind + chunk * (chunk + 1) / 2) * chunks,
        batch,
        batch * context,
        batch * drafts,
        batch,
    ),
    *(st.integers(0, n) for n in (4096, 8, 100000, 500, 1000000, 3)),
)


@pytest.mark.parametrize("name", STEPS)
@given(shape=SHAPES)
def test_parts_sum_and_ranges_hold_the_value(name: str, shape: StepShape) -> None:
    prediction = STEPS[name].seconds(shape)
    assert prediction.seconds == pytest.approx(STEPS[name].step_s(shape))
    assert sum(prediction.parts.values()) == pytest.approx(prediction.seconds)
    assert prediction.low <= prediction.seconds <= prediction.high
    assert math.isfinite(prediction.seconds) and (prediction.seconds > 0 or shape.num_tokens == 0)


@pytest.mark.parametrize("name", STEPS)
@given(batch=st.integers(1, 2000), context=st.integers(0, 10**6), more=st.integers(1, 1000))
def test_more_is_never_quicker(name: str, batch: int, context: int, more: int) -> None:
    step_time = STEPS[name]
    base = step_time.step_s(StepShape.decode(batch, batch * context))
    assert step_time.step_s(StepShape.decode(batch + more, (batch + more) * context)) >= base * (1 - 1e-12)
    assert step_time.step_s(StepShape.decode(batch, batch * (context + more))) >= base * (1 - 1e-12)
    assert step_time.step_s(StepShape(more, 1, more * more, batch, batch * context, 0, batch)) >= base * (1 - 1e-12)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("batch", [1, 7, 300])
def test_a_span_is_its_steps(name: str, batch: int) -> None:
    """The time skipping of the twin asks once for many steps."""
    step_time, context, num_steps = STEPS[name], 900, 400
    single = sum(step_time.step_s(StepShape.decode(batch, batch * (context + i))) for i in range(num_steps))
    assert step_time.decode_seconds(batch, batch * context, num_steps) == pytest.approx(single, rel=0.01)
    assert step_time.decode_seconds(0, 0, 5) == step_time.decode_seconds(3, 3, 0) == 0.0


def test_slower_software_takes_longer_for_everything() -> None:
    for factor in (0.5, 3.0):
        slowed = step_time_for("deepseek-v4-pro", "gb300_nvl72", "dep8", slowdown=factor)
        for shape in (StepShape.decode(1, 10), StepShape.decode(900, 10**7), StepShape.prefill(5000)):
            assert slowed.step_s(shape) == pytest.approx(factor * STEPS["dep8"].step_s(shape))


def test_a_plan_has_a_shape() -> None:
    def planned(computed: int, scheduled: int, drafts: int = 0, is_sampling: bool = True) -> SequencePlan:
        return SequencePlan(f"{computed}-{scheduled}", computed, scheduled, is_sampling, {}, drafts)

    plan = StepPlan(1, (planned(10, 1), planned(20, 3, 2), planned(0, 4, is_sampling=False), planned(8, 2)))
    shape = StepShape.of_plan(plan)
    assert shape == StepShape(6, 2, 1 + 2 + 3 + 4 + 9 + 10, 2, 30, 2, 3)
    assert shape.num_tokens == plan.num_tokens
    assert StepShape.of_plan(StepPlan(2, (planned(8, 2),))) == StepShape.prefill(2, 8)


def test_what_does_not_fit_is_told_by_how_much() -> None:
    with pytest.raises(
        ResourceError, match=r"deepseek-v4-pro as dep4 needs \d+\.\d GB .* \d+\.\d GB too much; use 8 or more"
    ):
        step_time_for("deepseek-v4-pro", "b200_sxm", "dep4")
    with pytest.raises(ResourceError, match=r"one sequence of 1000000 tokens holds 131\.07 GB"):
        step_time_for("llama-3.1-8b", "h100_sxm", context=10**6)
    with pytest.raises(ConfigError, match="did you mean 'gb300_nvl72'"):
        step_time_for("deepseek-v4-pro", "gb300-nvl27", "dep8")
    with pytest.raises(ConfigError, match="write tp8, tep8 or dep8"):
        step_time_for("deepseek-v4-pro", "gb300_nvl72", "pp8")


def test_memory_limits_the_batch() -> None:
    layout = Parallel.parse("dep8")
    fitting = max_sequences(PRO, GB300, layout, 8192)
    free = 278e9 * 0.92 - 4e9 - PRO.dense_bytes - PRO.head_bytes - PRO.embedding_bytes
    free -= (PRO.expert_bytes + PRO.draft_bytes) / 8
    assert fitting == 8 * int(free / PRO.kv_bytes(8192))
    assert max_sequences(PRO, CATALOGUE.get("h100_sxm"), layout, 8192) == 0
    check_fits(PRO, GB300, layout, 8192)
    assert max_sequences(describe_model("llama-3.1-8b"), GB300, Parallel(2), 8192) > 2 * 200


def test_layouts_are_written_as_they_are_read() -> None:
    for text in ("tp1", "tp8", "tep8", "dep16", "dp4"):
        assert str(Parallel.parse(text.upper())) == text


def test_devices_without_figures_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no FLOP/s for float64"):
        RooflineStepTime(
            describe_model("smollm2").__class__(**_fields("smollm2", dense_dtype="float64")), GB300, Parallel(1)
        )
    assert default_efficiency(CATALOGUE.get("cpu_server")).compute != default_efficiency(GB300).compute


def _fields(name: str, **changes: object) -> dict[str, object]:
    work = describe_model(name)
    return {field: getattr(work, field) for field in work.__dataclass_fields__} | changes
