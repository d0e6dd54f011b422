"""Price book, margins and cost of ownership: dated versions, currencies, formulas recomputed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.errors import ConfigError
from tokenmill.cost.margin import Mix, margin
from tokenmill.cost.prices import PriceBook, load_prices, parse_price
from tokenmill.cost.tco import Tco, sensitivities
from tokenmill.infra.catalogue import load_catalogue
from tokenmill.infra.device_spec import PriceKind

BOOK = """
[currencies]
EUR = [{ usd = 1.25, as_of = "2026-06-01", source = "me" }]
[[models.mine]]
input_cost_per_token = 1e-6
output_cost_per_token = 4e-6
cache_read_input_token_cost = 0.1e-6
as_of = "2026-01"
source = "me"
[[models.mine]]
input_cost_per_token = 2e-6
output_cost_per_token = 8e-6
currency = "EUR"
as_of = "2026-07-15"
source = "me"
"""


@pytest.fixture
def book(tmp_path: Path) -> PriceBook:
    path = tmp_path / "prices.toml"
    path.write_text(BOOK)
    return load_prices(path)


# -- token prices --


def test_an_old_claim_keeps_its_price(book: PriceBook) -> None:
    assert book.token_price("mine", "2026-03").input_cost_per_token == 1e-6
    assert book.token_price("mine", "2026-07-14").output_cost_per_token == 4e-6
    now = book.token_price("mine")
    assert (now.input_cost_per_token, now.output_cost_per_token) == (pytest.approx(2.5e-6), pytest.approx(1e-5))
    assert now.currency == "USD"
    with pytest.raises(ConfigError, match="no price as early as 2025-12: the first is of 2026-01"):
        book.token_price("mine", "2025-12")


def test_a_month_includes_its_days(book: PriceBook) -> None:
    assert book.token_price("mine", "2026-07").input_cost_per_token == pytest.approx(2.5e-6)


def test_currencies_by_dated_rate(book: PriceBook) -> None:
    assert book.rate("eur", "2024-12-31").usd == 1.0389
    assert book.rate("EUR", "2026-06").usd == 1.25
    assert book.rate("USD").usd == 1.0
    with pytest.raises(ConfigError, match="currency 'EUU' is not in the price book: did you mean 'EUR'"):
        book.rate("EUU")
    with pytest.raises(ConfigError, match="no price as early as 1999"):
        book.rate("EUR", "1999")


def test_litellm_reads_the_same_names(book: PriceBook) -> None:
    entry = book.to_litellm("2026-03")["mine"]
    assert entry["input_cost_per_token"] == 1e-6 and entry["output_cost_per_token"] == 4e-6
    assert entry["cache_read_input_token_cost"] == 0.1e-6
    assert "cache_creation_input_token_cost" not in entry and entry["mode"] == "chat"


def test_the_built_in_book_is_sound() -> None:
    book = load_prices(environ={})
    assert {"EUR", "GBP", "JPY", "CNY"} <= book.currencies.keys()
    assert all(book.token_price(name) for name in book.models)


def test_a_book_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(BOOK)
    assert "mine" in load_prices(environ={"TOKENMILL_PRICES": str(path)}).models


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 3", "models"),
        ("[[models.m]]\noutput_cost_per_token = 1\nas_of = '2026-01'\nsource = 'x'", "input_cost_per_token"),
        (
            "[[models.m]]\ninput_cost_per_token = -1\noutput_cost_per_token = 1\nas_of = '2026-01'\nsource = 'x'",
            "greater than or equal to 0",
        ),
        (
            "[[models.m]]\ninput_cost_per_tokn = 1\noutput_cost_per_token = 1\nas_of = '2026-01'\nsource = 'x'",
            "input_cost_per_to",
        ),
        ("[currencies]\nEUR = [{ usd = 0, as_of = '2026-01', source = 'x' }]", "greater than 0"),
        ("[currencies]\nEUR = [{ usd = 1, as_of = 'soon', source = 'x' }]", "as_of"),
        ("= 3", "is not TOML"),
    ],
)
def test_a_book_with_a_fault_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_prices(path)
    assert message in caught.value.message and "prices.toml" in caught.value.message


def test_a_book_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prices("/nonexistent/prices.toml")


def test_device_prices_keep_their_versions() -> None:
    """The catalogue's part of the price book: own and rent, asked as of a date."""
    h100 = load_catalogue(environ={}).get("h100_sxm")
    before, after = h100.price(PriceKind.RENT, on="2026-05"), h100.price(PriceKind.RENT, on="2026-07")
    assert before is not None and after is not None
    assert (before.usd_per_hour, after.usd_per_hour) == (1.30, 2.00)
    assert h100.price(PriceKind.OWN, on="2020-01") is None
    with pytest.raises(ConfigError, match="did you mean 'h100_sxm'"):
        load_catalogue(environ={}).get("h100_sx")


# -- margins --


def test_a_margin_by_hand() -> None:
    """8 input tokens at $0.435 and 1 output token at $0.87 per million, against $0.0658 per million."""
    result = margin(parse_price("0.435/0.87"), Mix.parse("8:1"), 0.0658)
    assert result.revenue_usd_per_mtok == pytest.approx((8 * 0.435 + 0.87) / 9)
    assert result.margin_share == pytest.approx(1 - 0.0658 / ((8 * 0.435 + 0.87) / 9))
    assert result.price_over_cost == pytest.approx(7.345, abs=1e-3)


def test_a_published_claim_as_a_calculation() -> None:
    """GB300 at its price of April 2026: 2,200 tok/s is $0.335 per million, 11,200 tok/s is $0.0658."""
    own = load_catalogue(environ={}).get("gb300_nvl72").price(PriceKind.OWN, on="2026-04")
    assert own is not None
    per_mtok = [own.usd_per_hour * 1e6 / 3600 / tok_s for tok_s in (2200, 11200)]
    assert per_mtok == [pytest.approx(0.335, abs=5e-4), pytest.approx(0.0658, abs=5e-5)]


def test_cached_input_is_cheaper_to_the_customer() -> None:
    price = parse_price("1/4/0.1")
    assert margin(price, Mix(10, 0, 0.5), 0).revenue_usd_per_mtok == pytest.approx(0.55)
    assert margin(parse_price("1/4"), Mix(10, 0, 0.5), 0).revenue_usd_per_mtok == pytest.approx(1.0)


def test_selling_for_nothing_and_paying_nothing() -> None:
    assert margin(parse_price("0/0"), Mix(8, 1), 1.0).margin_share is None
    assert margin(parse_price("1/1"), Mix(8, 1), 0.0).price_over_cost is None


@pytest.mark.parametrize("text", ["1", "a/b", "1/2/3/4", "-1/2", "nan/1", ""])
def test_texts_that_are_no_price(text: str) -> None:
    with pytest.raises(ConfigError, match="--price"):
        parse_price(text)


@pytest.mark.parametrize("text", ["8", "8:1:2", "a:b", "0:0", "-1:2", "nan:1", "inf:1"])
def test_texts_that_are_no_mix(text: str) -> None:
    with pytest.raises(ConfigError, match="--mix"):
        Mix.parse(text)


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf])
def test_costs_that_are_none(cost: float) -> None:
    with pytest.raises(ConfigError, match="not possible"):
        margin(parse_price("1/1"), Mix(8, 1), cost)


# -- cost of ownership --


def test_capital_recovery_pays_the_loan_back() -> None:
    """Paying CRF x capex at the end of each year leaves nothing owed after the last."""
    tco = Tco(capex_usd=50_000, years=4, cost_of_capital=0.1)
    owed = tco.capex_usd
    for _ in range(4):
        owed = owed * 1.1 - tco.capex_usd * tco.capital_recovery_factor
    assert owed == pytest.approx(0, abs=1e-6)
    assert Tco(capex_usd=1, years=4, cost_of_capital=0).capital_recovery_factor == 0.25
    assert Tco(capex_usd=1, years=4, cost_of_capital=1e-12).capital_recovery_factor == pytest.approx(0.25)


def test_an_hour_by_hand() -> None:
    tco = Tco(
        capex_usd=50_000, years=4, cost_of_capital=0.1, watts=1370, pue=1.3, usd_per_kwh=0.08, opex_usd_per_year=876,
        uptime=0.5, utilisation=0.6,
    )  # fmt: skip
    capital = 50_000 * 0.1 * 1.1**4 / (1.1**4 - 1) / (8760 * 0.5)
    hourly = capital + 1.37 * 1.3 * 0.08 + 0.2
    assert tco.usd_per_hour == pytest.approx(hourly)
    assert tco.usd_per_used_hour == pytest.approx(hourly / 0.6)
    assert tco.usd_per_mtok(3000) == pytest.approx(hourly / 0.6 / (3000 * 3600) * 1e6)


def test_what_it_is_sold_for_in_the_end_counts_at_todays_worth() -> None:
    whole, sold = (Tco(capex_usd=10_000, years=3, cost_of_capital=0.1, residual_share=r) for r in (0.0, 0.331))
    assert sold.capital_usd_per_hour == pytest.approx(whole.capital_usd_per_hour * (1 - 0.331 / 1.331))


def test_sensitivities_say_what_matters() -> None:
    rows = sensitivities(Tco(capex_usd=50_000, watts=1000, utilisation=0.5, uptime=1.0), 0.2)
    by_name = {row.name: row for row in rows}
    assert rows[0].name == "utilisation" and by_name["utilisation"].elasticity == pytest.approx(-1, abs=1e-3)
    assert by_name["watts"].elasticity + by_name["capex_usd"].elasticity == pytest.approx(1, abs=1e-3)
    assert (by_name["uptime"].low, by_name["uptime"].high) == (0.8, 1.0), "an uptime above 1 does not exist"
    assert "residual_share" not in by_name


@settings(deadline=None)
@given(
    capex=st.floats(1, 1e6), watts=st.floats(0, 1e4), utilisation=st.floats(0.01, 1), rate=st.floats(0, 1),
    years=st.floats(0.5, 20),
)  # fmt: skip
def test_owning_never_gets_cheaper_by_paying_more(
    capex: float, watts: float, utilisation: float, rate: float, years: float
) -> None:
    tco = Tco(capex_usd=capex, watts=watts, utilisation=utilisation, cost_of_capital=rate, years=years)
    dearer = Tco(capex_usd=capex * 2, watts=watts + 1, utilisation=utilisation, cost_of_capital=rate, years=years)
    assert 0 < tco.usd_per_hour < dearer.usd_per_hour
    assert tco.usd_per_used_hour >= tco.usd_per_hour


@pytest.mark.parametrize(
    "given_",
    [{"capex_usd": -1}, {"capex_usd": math.nan}, {"years": 0}, {"cost_of_capital": 10}, {"pue": 0.9},
     {"utilisation": 0}, {"uptime": 1.1}, {"watts": -5}, {"capex_usd": math.inf}],
)  # fmt: skip
def test_figures_that_cannot_be(given_: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="is not possible: give"):
        Tco(**{"capex_usd": 1.0, **given_})


def test_tokens_per_second_must_be_some() -> None:
    with pytest.raises(ConfigError, match="--tok-s"):
        Tco(capex_usd=1).usd_per_mtok(0)
