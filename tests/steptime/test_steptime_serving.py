"""Steady states: closed loops obey Little's law, frontiers fall, prefill and decode are matched by rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.cost.steptime.efficiency import default_efficiency
from tokenmill.cost.steptime.frontier import Frontier, Space
from tokenmill.cost.steptime.load import step_time_for
from tokenmill.cost.steptime.roofline import RooflineStepTime
from tokenmill.cost.steptime.serving import Aggregated, Disaggregated, Server, Traffic
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.models.priced import describe_model

CATALOGUE = load_catalogue(environ={})
TRAFFIC = Traffic(8192, 1024)


def server(layout: str, traffic: Traffic = TRAFFIC) -> Server:
    step_time = step_time_for("deepseek-v4-pro", "gb300_nvl72", layout)
    assert isinstance(step_time, RooflineStepTime)
    return Server(step_time, traffic)


def frontier(space: Space, model: str = "deepseek-v4-pro", device: str = "gb300_nvl72") -> Frontier:
    spec = CATALOGUE.get(device)
    return Frontier(describe_model(model), spec, TRAFFIC, space, default_efficiency(spec))


@given(st.floats(1, 4000))
def test_aggregated_workers_are_never_idle(concurrency: float) -> None:
    """Their seconds are those of prompts and of decode steps: 1 = X prompt_s + X osl tpot(B) / B."""
    worker = Aggregated(server("dep8"))
    steady = worker.at_concurrency(concurrency)
    prompts = steady.requests_per_s * TRAFFIC.isl / worker.server.prompt_tokens_per_s
    decodes = steady.requests_per_s * TRAFFIC.osl * worker.server.tpot_s(steady.num_in_decode) / steady.num_in_decode
    assert prompts + decodes == pytest.approx(1.0)
    assert steady.num_in_decode <= worker.server.max_batch
    assert steady.tput_per_device == pytest.approx(steady.requests_per_s * 9216 / 8)


@settings(max_examples=30)
@given(st.floats(1, 20000), st.integers(1, 12), st.integers(1, 3))
def test_a_closed_loop_holds_no_more_than_its_concurrency(
    concurrency: float, num_prefill: int, num_decode: int
) -> None:
    """Little: those in decode are X osl tpot; prompts are served no faster than prefill can."""
    deployment = Disaggregated(server("dep4"), num_prefill, server("dep16"), num_decode)
    steady = deployment.at_concurrency(concurrency)
    assert steady.num_in_decode == pytest.approx(steady.requests_per_s * TRAFFIC.osl * steady.tpot_s)
    assert steady.num_in_decode <= concurrency * (1 + 1e-9)
    assert steady.requests_per_s <= deployment.prefill_requests_per_s * (1 + 1e-6)
    assert steady.num_devices == 4 * num_prefill + 16 * num_decode


def test_a_starved_decode_worker_gains_nothing_from_more_requests() -> None:
    deployment = Disaggregated(server("dep4"), 1, server("dep16"), 1)
    few, many = deployment.at_concurrency(2000), deployment.at_concurrency(8000)
    assert few.requests_per_s == pytest.approx(deployment.prefill_requests_per_s, rel=1e-3)
    assert many.requests_per_s == pytest.approx(few.requests_per_s, rel=1e-3)


def test_prefill_reaches_the_published_share_of_the_peak() -> None:
    """21 to 30 % of the FP8 peak is what published prefill rates come to."""
    work = describe_model("deepseek-v4-pro")
    rate = server("dep8").prompt_tokens_per_s / 8
    share = rate * work.token_flops(4096, is_prefill=True) / 5e15
    assert 0.20 < share < 0.32


@pytest.mark.parametrize("is_disagg", [True, False])
def test_frontiers_fall(is_disagg: bool) -> None:
    found = [
        choice.steady.tput_per_device
        for user in (10, 15, 20, 30, 45, 70)
        if (choice := frontier(Space(is_disagg=is_disagg)).at_interactivity(user)) is not None
    ]
    assert len(found) >= 4 and found == sorted(found, reverse=True)
    assert frontier(Space(is_disagg=is_disagg)).at_interactivity(1000) is None


def test_drafts_help_users_in_a_hurry() -> None:
    plain, drafted = (frontier(Space(is_disagg=True, drafts=drafts)) for drafts in ((0,), (0, 1, 2, 3)))
    for user in (20, 50, 70):
        ours, theirs = drafted.at_interactivity(user), plain.at_interactivity(user)
        assert ours is not None
        assert theirs is None or ours.steady.tput_per_device >= theirs.steady.tput_per_device
    hurried = drafted.at_interactivity(50)
    assert hurried is not None and hurried.num_drafts > 0 and "drafts" in str(hurried)


def test_models_without_a_draft_block_do_not_draft() -> None:
    assert frontier(Space(drafts=(0, 1, 2)), "gpt-oss-120b", "b200_sxm").drafts == (0,)
    with pytest.raises(ConfigError, match="gpt-oss-120b has no draft block"):
        frontier(Space(drafts=(1, 2)), "gpt-oss-120b", "b200_sxm").at_interactivity(10)


def test_deployments_stay_within_their_domain() -> None:
    for user in (15, 30, 60):
        choice = frontier(Space(is_disagg=True)).at_interactivity(user)
        assert choice is not None and choice.steady.num_devices <= 72
    small = frontier(Space(), "gpt-oss-120b", "b200_sxm").at_interactivity(50)
    assert small is not None and small.prefill is None  # within a host, prompts and decodes share the worker


def test_a_model_beyond_every_layout_is_refused() -> None:
    with pytest.raises(ResourceError, match="deepseek-v4-pro as tp8 needs"):
        frontier(Space(), device="l40s").at_interactivity(10)
