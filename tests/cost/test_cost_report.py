"""Answers about cost: filters, windows, groups, what the cache avoided; every cut adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.core.errors import BadRequestError
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.report import Query, parse_query, report

RATE = DeviceRate(usd_per_hour=3600.0, watts=50.0)


@pytest.fixture
def ledger(teller: Callable[..., Any]) -> Ledger:
    """Three minutes: acme's lead and its sub-agent, then somebody without a name; idle time in each."""
    ledger, worker = Ledger(), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    ledger.begin("a", "m", tenant="acme", session="lead", num_prompt_tokens=40)
    ledger.step(worker.frame({"a": 4.0}, prefill_s=4.0, prompt_tokens=40, idle_s=50.0))
    ledger.begin("b", "m", tenant="acme", session="sub", parent_session="lead", num_prompt_tokens=40)
    ledger.step(worker.frame({"b": 2.0}, prefill_s=1.0, prompt_tokens=10, cached=30, tokens=4, idle_s=50.0))
    ledger.begin("c", "m", num_prompt_tokens=10)
    ledger.step(worker.frame({"c": 1.0}, prefill_s=1.0, prompt_tokens=10, idle_s=30.0))
    for request_id in "abc":
        ledger.finish(request_id)
    return ledger


def ask(ledger: Ledger, **given: str) -> dict[str, Any]:
    return report(ledger.cells(), parse_query(given, now_s=130.0), ledger.spending.line_of)


def test_the_whole_bill(ledger: Ledger) -> None:
    answer = ask(ledger)
    assert answer["usd"]["total"] == 137.0 == sum(v for k, v in answer["usd"].items() if k not in ("total", "charged"))
    assert (answer["usd"]["prefill"], answer["usd"]["decode"], answer["usd"]["idle"]) == (6.0, 1.0, 130.0)
    assert answer["usd"]["charged"] == 7.0
    assert answer["tokens"] | {"prompt": 90, "cached": 30, "computed": 60, "output": 6} == answer["tokens"]
    assert answer["usd_per_mtok"]["total"] == pytest.approx(137.0 / 96 * 1e6)
    assert answer["usd_per_mtok"]["uncached"] == pytest.approx(137.0 / 66 * 1e6)
    assert answer["energy"]["source"] == "modelled" and answer["energy"]["joules"] == 137.0 * 50


def test_what_the_cache_avoided_is_priced_by_measured_prefill(ledger: Ledger) -> None:
    """60 tokens took 6 s: each of the 30 cached ones saved 0.1 s and 0.1 dollars."""
    assert ask(ledger)["avoided"] == {"tokens": 30, "seconds": pytest.approx(3.0), "usd": pytest.approx(3.0)}
    assert ask(ledger, session="lead")["avoided"]["tokens"] == 0
    assert ask(ledger, session="sub")["avoided"]["usd"] == pytest.approx(3.0)


def test_cached_tokens_of_a_model_that_never_prefilled_have_no_price(teller: Callable[..., Any]) -> None:
    ledger, worker = Ledger(), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    ledger.begin("a", "m", num_prompt_tokens=40)
    ledger.step(worker.frame({"a": 4.0}, cached=30))
    assert ask(ledger)["avoided"] == {"tokens": 30, "seconds": 0.0, "usd": 0.0, "unpriced_tokens": 30}


def test_somebodys_part_has_no_idle_time_but_its_share_is_told(ledger: Ledger) -> None:
    answer = ask(ledger, tenant="acme")
    assert "idle" not in answer["usd"] and answer["usd"]["total"] == 6.0
    assert answer["usd_with_overhead"] == pytest.approx(137.0 * 6 / 7)


def test_sub_agents_count_when_asked_for(ledger: Ledger) -> None:
    assert ask(ledger, session="lead")["usd"]["total"] == 4.0
    assert ask(ledger, session="lead", sub_agents="true")["usd"]["total"] == 6.0
    assert ask(ledger, session="sub", sub_agents="true")["usd"]["total"] == 2.0
    assert ask(ledger, session="nobody")["usd"]["total"] == 0.0


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("tenant", {"acme": 6.0, "(none)": 1.0}),
        ("session", {"lead": 4.0, "sub": 2.0, "(none)": 1.0}),
        ("model", {"m": 137.0}),
        ("minute", {"0": 54.0, "60": 52.0, "120": 31.0}),
        ("hour", {"0": 137.0}),
    ],
)
def test_groups_add_up(ledger: Ledger, by: str, expected: dict[str, float]) -> None:
    answer = ask(ledger, by=by)
    assert {group[by]: group["usd"]["total"] for group in answer["groups"]} == expected
    assert sum(group["usd"]["charged"] for group in answer["groups"]) == answer["usd"]["charged"]
    assert answer["usd"]["total"] == 137.0


def test_windows_are_whole_minutes(ledger: Ledger) -> None:
    assert ask(ledger, window="60s")["usd"]["total"] == 83.0  # minutes 1 and 2 of what ended at second 137
    assert ask(ledger, since="60", until="120")["usd"]["total"] == 52.0
    assert ask(ledger, until="0")["usd"]["total"] == 0.0
    assert ask(ledger, model="other")["usd"]["total"] == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"windw": "1h"}, "did you mean 'window'"),
        ({"window": "an hour"}, "no time span"),
        ({"window": "0m"}, "no time span"),
        ({"window": "1h", "since": "5"}, "say the same twice"),
        ({"since": "yesterday"}, "no time"),
        ({"since": "nan"}, "no time"),
        ({"since": "20", "until": "10"}, "swap them"),
        ({"by": "tennant"}, "did you mean 'tenant'"),
    ],
)
def test_questions_that_make_no_sense(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        parse_query(given, 100.0)


def test_an_empty_ledger_has_no_prices() -> None:
    answer = report((), Query(), lambda session: [session])
    assert answer["usd"]["total"] == 0.0
    assert set(answer["usd_per_mtok"].values()) == {None} and answer["joules_per_token"] is None
