"""Latency objectives: both spellings, what meets them, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError
from tokenmill.core.slo import SLO


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft=500ms,tpot=50ms", SLO(ttft_s=0.5, tpot_s=0.05)),
        ("ttft=0.5s, tpot=50ms", SLO(ttft_s=0.5, tpot_s=0.05)),
        ("ttft:500 tpot:50", SLO(ttft_s=0.5, tpot_s=0.05)),
        ("ttft:500 e2el:3000", SLO(ttft_s=0.5, e2e_s=3.0)),
        ("e2e=1m", SLO(e2e_s=60.0)),
        ("TPOT=12.5ms", SLO(tpot_s=0.0125)),
        ("ttft=1s tpot:40", SLO(ttft_s=1.0, tpot_s=0.04)),
    ],
)
def test_parse(text: str, slo: SLO) -> None:
    assert SLO.parse(text) == slo


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no objective"),
        (" , ", "no objective"),
        ("tttft=500ms", "did you mean 'ttft'"),
        ("latency=5s", "possible: ttft, tpot, e2e, e2el"),
        ("ttft", "no bound"),
        ("ttft=", "no bound"),
        ("ttft:", "no bound"),
        ("ttft=500", "lacks a unit"),
        ("ttft=5parsec", "duration"),
        ("ttft:500ms", "number of milliseconds"),
        ("ttft=0ms", "positive"),
        ("ttft:-5", "positive"),
        ("ttft:nan", "positive"),
        ("ttft:inf", "positive"),
        ("ttft=1s,ttft=2s", "ttft twice"),
        ("e2e=1s,e2el:5", "e2e twice"),
    ],
)
def test_errors_say_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        SLO.parse(text)


def test_an_empty_slo_is_refused() -> None:
    with pytest.raises(ConfigError, match="without an objective"):
        SLO()


def test_is_met_at_the_bound() -> None:
    slo = SLO(ttft_s=0.5, tpot_s=0.05, e2e_s=2.0)
    assert slo.is_met(0.5, 0.05, 2.0)
    assert not slo.is_met(0.5001, 0.05, 2.0)
    assert not slo.is_met(0.5, 0.0501, 2.0)
    assert not slo.is_met(0.5, 0.05, 2.1)


def test_objectives_not_set_do_not_matter() -> None:
    assert SLO(ttft_s=1.0).is_met(0.5, 99.0, None)
    assert SLO(tpot_s=1.0).is_met(None, 0.5, None)


def test_missing_measurements() -> None:
    """One token has no TPOT, so nothing was too slow; no first token is a failure."""
    assert SLO(tpot_s=0.05).is_met(0.1, None, 0.1)
    assert not SLO(ttft_s=0.5).is_met(None, None, None)
    assert not SLO(e2e_s=0.5).is_met(0.1, 0.1, None)


MS = st.one_of(st.none(), st.integers(1, 10**6))


@given(ttft=MS, tpot=MS, e2e=MS)
def test_canonical_spelling_reads_back(ttft: int | None, tpot: int | None, e2e: int | None) -> None:
    if ttft or tpot or e2e:
        slo = SLO(*(None if ms is None else ms / 1e3 for ms in (ttft, tpot, e2e)))
        back = SLO.parse(str(slo))
        assert str(back) == str(slo)
        bounds = [(back.ttft_s, ttft), (back.tpot_s, tpot), (back.e2e_s, e2e)]
        assert [s and round(s * 1e3) for s, _ in bounds] == [ms for _, ms in bounds]


@given(bound=st.floats(1e-3, 10), value=st.floats(0, 20), slack=st.floats(0, 5))
def test_a_looser_objective_is_never_harder(bound: float, value: float, slack: float) -> None:
    if SLO(ttft_s=bound).is_met(value, None, None):
        assert SLO(ttft_s=bound + slack).is_met(value, None, None)
