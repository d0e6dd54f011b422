"""`tokenmill cost margin`, `tco` and `prices`: what is left of a price, what owning a device costs, the price book."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, print_json, print_table

_PRICES = typer.Option(None, "--prices", help="A price book of your own (TOML), on top of the built-in one.")
_ON = typer.Option(None, "--on", metavar="DATE", help="Prices as they were on this date (YYYY-MM or YYYY-MM-DD).")
_KIND = typer.Option(None, "--kind", help="Which device price: own, rent, on_demand or spot.")


def add_to(app: typer.Typer) -> None:
    app.command()(margin)
    app.command()(tco)
    app.command()(prices)


def margin(
    price: str | None = typer.Option(None, "--price", metavar="IN/OUT", help="Dollars per million tokens."),
    model: str | None = typer.Option(None, "--model", help="Take the price of this model from the price book."),
    mix: str | None = typer.Option(None, "--mix", metavar="IN:OUT", help="Input to output tokens, e.g. 8:1."),
    cached_share: float = typer.Option(0.0, "--cached-share", help="Share of the input billed as cached."),
    cost: float | None = typer.Option(None, "--cost", help="What a million tokens cost you, in dollars."),
    device: str | None = typer.Option(None, "--device", help="Or: a device of the catalogue …"),
    tok_s: float | None = typer.Option(None, "--tok-s", help="… and its tokens per second, input and output."),
    url: str | None = typer.Option(None, "--url", help="Or: what this server's ledger says."),
    file: Path | None = typer.Option(None, "--from", help="Or: what this ledger file says."),
    kind: str | None = _KIND,
    on: str | None = _ON,
    prices: Path | None = _PRICES,
    as_json: bool = JSON_OPTION,
) -> None:
    """What is left of a price, per million tokens of a mix."""
    from dataclasses import asdict

    from tokenmill.core.errors import ConfigError
    from tokenmill.cost import margin as maths
    from tokenmill.cost.prices import check_date, load_prices, parse_price

    on = check_date(on)
    if (price is None) == (model is None):
        raise ConfigError("a margin needs one price: give --price IN/OUT or --model NAME")
    sold = parse_price(price) if price is not None else load_prices(prices).token_price(str(model), on)
    paid, origin, ledger = _cost_per_mtok(cost, device, tok_s, url, file, kind, on)
    chosen = maths.Mix.parse(mix, cached_share) if mix is not None else _mix_of(ledger)
    result = maths.margin(sold, chosen, paid)
    answer = {
        "object": "margin",
        "revenue_usd_per_mtok": result.revenue_usd_per_mtok,
        "cost_usd_per_mtok": result.cost_usd_per_mtok,
        "margin_usd_per_mtok": result.margin_usd_per_mtok,
        "margin_share": result.margin_share,
        "price_over_cost": result.price_over_cost,
        "mix": asdict(chosen),
        "price_source": f"{sold.source}, {sold.as_of}" if price is None else "--price",
        "cost_source": origin,
    }
    if as_json:
        print_json(answer)
        return
    share = "" if result.margin_share is None else f" ({result.margin_share:.1%} of the price)"
    print(f"revenue  ${result.revenue_usd_per_mtok:.6g} per million tokens ({answer['price_source']})")
    print(f"cost     ${result.cost_usd_per_mtok:.6g} ({origin})")
    sign = "-" if result.margin_usd_per_mtok < 0 else ""
    print(f"margin   {sign}${abs(result.margin_usd_per_mtok):.6g}{share}")


def _cost_per_mtok(
    cost: float | None,
    device: str | None,
    tok_s: float | None,
    url: str | None,
    file: Path | None,
    kind: str | None,
    on: str | None,
) -> tuple[float, str, dict[str, Any] | None]:
    """Dollars per million tokens, where they come from, and the ledger's answer if they come from one."""
    from tokenmill.core.errors import ConfigError

    given = [one for one in (cost, device, url, file) if one is not None]
    if len(given) != 1:
        raise ConfigError("a margin needs one cost: give --cost, --device with --tok-s, --url or --from")
    if cost is not None:
        return cost, "--cost", None
    if device is not None:
        if tok_s is None or not tok_s > 0:
            raise ConfigError(f"--device {device} needs --tok-s, the tokens per second of one device")
        hourly = _device_price(device, kind, on)
        source = f"{device}: ${hourly.usd_per_hour:g}/h {hourly.kind}, {hourly.source}, {hourly.as_of}"
        return hourly.usd_per_hour * 1e6 / (3600 * tok_s), f"{source}; {tok_s:g} tok/s", None
    from tokenmill.cli.cost import ask_file, ask_server

    ledger = ask_file(file, {}, None) if file is not None else ask_server(str(url), {}, None)
    paid = ledger["usd_per_mtok"]["total"]
    if paid is None:
        raise ConfigError(f"the ledger of {file or url} has no tokens yet: there is no cost per token")
    return paid, f"ledger of {file or url}, idle time included", ledger


def _mix_of(ledger: dict[str, Any] | None) -> Any:
    from tokenmill.core.errors import ConfigError
    from tokenmill.cost.margin import Mix

    if ledger is None:
        raise ConfigError("a margin needs a mix: give --mix IN:OUT, e.g. 8:1")
    tokens = ledger["tokens"]
    return Mix(tokens["prompt"], tokens["output"], tokens["cached"] / tokens["prompt"] if tokens["prompt"] else 0.0)


def _device_price(device: str, kind: str | None, on: str | None) -> Any:
    from tokenmill.core.errors import ConfigError
    from tokenmill.infra.catalogue import load_catalogue
    from tokenmill.infra.device_spec import PriceKind

    names = [one.value for one in PriceKind]
    if kind is not None and kind not in names:
        raise ConfigError(f"--kind {kind!r} is no kind of price: possible: {', '.join(names)}")
    spec = load_catalogue().get(device)
    price = spec.price(PriceKind(kind) if kind else None, on=on)
    if price is None:
        known = ", ".join(f"{p.kind} {p.as_of}" for p in spec.prices) or "none"
        raise ConfigError(f"device {spec.key} has no price of that kind and date; it has: {known}")
    return price


def tco(
    capex_usd: float = typer.Option(..., "--capex-usd", help="Of one device, with its part of server and network."),
    years: float = typer.Option(4.0, "--years", help="Economic life."),
    cost_of_capital: float = typer.Option(0.10, "--cost-of-capital", help="Per year."),
    residual_share: float = typer.Option(0.0, "--residual-share", help="What it is sold for, as a share of capex."),
    watts: float | None = typer.Option(None, "--watts", help="At the plug, host and network share included."),
    device: str | None = typer.Option(None, "--device", help="Take the watts of this device of the catalogue."),
    pue: float = typer.Option(1.3, "--pue", help="Facility watts per plug watt."),
    usd_per_kwh: float = typer.Option(0.08, "--usd-per-kwh"),
    opex_usd_per_year: float = typer.Option(0.0, "--opex-usd-per-year", help="Hosting, staff, spares, software."),
    uptime: float = typer.Option(1.0, "--uptime", help="Share of hours it can work."),
    utilisation: float = typer.Option(1.0, "--utilisation", help="Share of those hours that are sold."),
    tok_s: float | None = typer.Option(None, "--tok-s", help="Tokens per second of one device at work."),
    by: float = typer.Option(0.2, "--by", help="How far the table of sensitivities moves each figure."),
    as_json: bool = JSON_OPTION,
) -> None:
    """What an hour of an owned device costs, and what that depends on."""
    from dataclasses import asdict

    from tokenmill.core.errors import ConfigError
    from tokenmill.cost.tco import Tco, sensitivities

    if not 0 < by < 1:
        raise ConfigError(f"--by={by} is not possible: give a share between 0 and 1")
    owned = Tco(
        capex_usd=capex_usd,
        years=years,
        cost_of_capital=cost_of_capital,
        residual_share=residual_share,
        watts=_watts(watts, device),
        pue=pue,
        usd_per_kwh=usd_per_kwh,
        opex_usd_per_year=opex_usd_per_year,
        uptime=uptime,
        utilisation=utilisation,
    )
    rows = sensitivities(owned, by)
    answer = {
        "object": "tco",
        "given": asdict(owned),
        "capital_recovery_factor": owned.capital_recovery_factor,
        "capital_usd_per_hour": owned.capital_usd_per_hour,
        "power_usd_per_hour": owned.power_usd_per_hour,
        "opex_usd_per_hour": owned.opex_usd_per_hour,
        "usd_per_hour": owned.usd_per_hour,
        "usd_per_used_hour": owned.usd_per_used_hour,
        "usd_per_mtok": None if tok_s is None else owned.usd_per_mtok(tok_s),
        "sensitivities": [asdict(row) for row in rows],
    }
    if as_json:
        print_json(answer)
        return
    for name in ("capital", "power", "opex"):
        print(f"{name:<12} ${answer[f'{name}_usd_per_hour']:.4f} per hour")
    print(f"{'together':<12} ${owned.usd_per_hour:.4f} per hour, ${owned.usd_per_used_hour:.4f} per hour that is sold")
    if tok_s is not None:
        print(f"{'tokens':<12} ${owned.usd_per_mtok(tok_s):.4f} per million at {tok_s:g} tok/s")
    table = [
        (row.name, *(f"{v:.4g}" for v in (row.low, row.high, row.usd_per_used_hour_low, row.usd_per_used_hour_high)),
         f"{row.elasticity:+.2f}")
        for row in rows
    ]  # fmt: skip
    print_table(("figure", "from", "to", "$/h from", "$/h to", "% per %"), table)


def _watts(watts: float | None, device: str | None) -> float:
    from tokenmill.core.errors import ConfigError
    from tokenmill.infra.catalogue import load_catalogue

    if watts is not None or device is None:
        return watts or 0.0
    spec = load_catalogue().get(device)
    draw = spec.all_in_w or spec.tdp_w
    if draw is None:
        raise ConfigError(f"device {spec.key} has no watts: give --watts")
    return draw.value


def prices(
    model: str | None = typer.Option(None, "--model", help="Only this model."),
    device: str | None = typer.Option(None, "--device", help="A device of the catalogue instead of a model."),
    kind: str | None = _KIND,
    on: str | None = _ON,
    currency: str = typer.Option("USD", "--currency", help="In this currency, by the rate of the date."),
    book: Path | None = _PRICES,
    litellm: bool = typer.Option(False, "--litellm", help="Print LiteLLM's cost map, for a gateway to bill from."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Token prices and device prices of a date."""
    from tokenmill.cost.prices import COST_FIELDS, check_date, load_prices

    on = check_date(on)
    known = load_prices(book)
    if litellm:
        print_json(known.to_litellm(on))
        return
    rate = known.rate(currency, on)
    if device is not None:
        hourly = _device_price(device, kind, on)
        rows: list[dict[str, Any]] = [
            {"device": device, "kind": hourly.kind.value, "per_hour": hourly.usd_per_hour / rate.usd,
             "as_of": hourly.as_of, "source": hourly.source, "is_estimated": hourly.is_estimated}
        ]  # fmt: skip
    else:
        names = [model] if model is not None else list(known.to_litellm(on))
        found = [(name, known.token_price(name, on)) for name in names]
        rows = [
            {"model": name, "as_of": price.as_of, "source": price.source}
            | {field: value / rate.usd for field in COST_FIELDS if (value := getattr(price, field)) is not None}
            for name, price in found
        ]
    if as_json:
        print_json({"currency": currency.upper(), "rate": rate.model_dump(), "prices": rows})
        return
    headers = list(dict.fromkeys(key for row in rows for key in row))
    print_table(headers, [[row.get(key) for key in headers] for row in rows])
    if currency.upper() != "USD":
        print(f"1 {currency.upper()} = ${rate.usd:g} ({rate.source}, {rate.as_of})")
