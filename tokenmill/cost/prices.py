"""The price book: what tokens are sold for and what currencies are worth, each version with its date kept.

Not responsible for: device prices (infra/catalogue has them, dated too), what tokens cost us (cost/ledger).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field, StringConstraints

from tokenmill.core.config import FrozenConfig
from tokenmill.core.errors import ConfigError

ENV_VAR = "TOKENMILL_PRICES"
_BUILTIN = "price_book.toml"
_PER_MILLION = 1e6

_DATE = r"^\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?$"
Date = Annotated[str, StringConstraints(pattern=_DATE)]
Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rate(FrozenConfig):
    """Dollars for one unit of a currency at a date."""

    usd: float = Field(gt=0, allow_inf_nan=False)
    as_of: Date
    source: str = Field(min_length=1)


class TokenPrice(FrozenConfig):
    """Money per single token, by LiteLLM's names; None: the same as without the cache or the batch."""

    input_cost_per_token: Money
    output_cost_per_token: Money
    cache_read_input_token_cost: Money | None = None
    cache_creation_input_token_cost: Money | None = None
    input_cost_per_token_batches: Money | None = None
    output_cost_per_token_batches: Money | None = None
    currency: str = "USD"
    as_of: Date
    source: str = Field(min_length=1)
    note: str = ""

    def scaled(self, usd: float) -> TokenPrice:
        """The same in dollars, `usd` being the worth of one unit of its currency."""
        figures = {name: value * usd for name in COST_FIELDS if (value := getattr(self, name)) is not None}
        return self.model_copy(update={**figures, "currency": "USD"})


COST_FIELDS = tuple(name for name in TokenPrice.model_fields if "cost" in name)


class _File(FrozenConfig):
    currencies: dict[str, tuple[Rate, ...]] = Field(default_factory=dict)
    models: dict[str, tuple[TokenPrice, ...]] = Field(default_factory=dict)


class _Dated(Protocol):
    @property
    def as_of(self) -> str: ...


D = TypeVar("D", bound=_Dated)


class PriceBook:
    def __init__(self, currencies: Mapping[str, Sequence[Rate]], models: Mapping[str, Sequence[TokenPrice]]) -> None:
        self.currencies = {name: tuple(rates) for name, rates in currencies.items()}
        self.models = {name: tuple(prices) for name, prices in models.items()}

    def token_price(self, model: str, on: str | None = None) -> TokenPrice:
        """The newest price no later than `on` (YYYY-MM[-DD]), in dollars of that date; ConfigError without one."""
        price = _newest(self.models.get(model, ()), on)
        if price is None:
            raise ConfigError(_missing("model", model, self.models, on, "--price IN/OUT or --prices FILE"))
        return price if price.currency == "USD" else price.scaled(self.rate(price.currency, on or price.as_of).usd)

    def rate(self, currency: str, on: str | None = None) -> Rate:
        """The newest rate no later than `on`."""
        name = currency.upper()
        if name == "USD":
            return Rate(usd=1.0, as_of=on or date.min.isoformat(), source="by definition")
        rate = _newest(self.currencies.get(name, ()), on)
        if rate is None:
            raise ConfigError(_missing("currency", name, self.currencies, on, "a rate of your own in --prices FILE"))
        return rate

    def to_litellm(self, on: str | None = None) -> dict[str, dict[str, Any]]:
        """The prices of a date as LiteLLM's cost map has them, so that a gateway can bill from them."""
        known = [model for model in self.models if _newest(self.models[model], on) is not None]
        return {model: _litellm_entry(self.token_price(model, on)) for model in known}


def _litellm_entry(price: TokenPrice) -> dict[str, Any]:
    figures = {name: value for name in COST_FIELDS if (value := getattr(price, name)) is not None}
    return {**figures, "litellm_provider": "openai", "mode": "chat"}


def _newest(versions: Sequence[D], on: str | None) -> D | None:
    """A month includes all its days, as in infra/device_spec."""
    dated = [v for v in versions if on is None or v.as_of <= on or v.as_of.startswith(on)]
    return max(dated, key=lambda version: version.as_of, default=None)


def _missing(what: str, name: str, known: Mapping[str, Sequence[_Dated]], on: str | None, instead: str) -> str:
    if name in known:
        first = min(version.as_of for version in known[name])
        return f"{what} {name!r} has no price as early as {on}: the first is of {first}; give {instead}"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{what} {name!r} is not in the price book: {hint}possible: {', '.join(known)}; or give {instead}"


def load_prices(path: str | Path | None = None, *, environ: Mapping[str, str] = os.environ) -> PriceBook:
    """The built-in book with `path`, or the file that TOKENMILL_PRICES names, on top."""
    user = path or environ.get(ENV_VAR)
    base = _builtin()
    if not user:
        return PriceBook(base.currencies, base.models)
    mine = _parse(_read(Path(user)), str(user))
    return PriceBook(_join(base.currencies, mine.currencies), _join(base.models, mine.models))


def _join(base: Mapping[str, tuple[Any, ...]], over: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Versions of both; of one date the file's own."""
    joined = dict(base)
    for name, versions in over.items():
        dates = {version.as_of for version in versions}
        joined[name] = (*(v for v in base.get(name, ()) if v.as_of not in dates), *versions)
    return joined


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"price book {path} cannot be read ({error}): give another --prices") from None


def _parse(text: str, name: str) -> _File:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"price book {name} is not TOML: {error}") from None
    return _File.parse(data, path=f"price book {name}:")


@cache
def _builtin() -> _File:
    return _parse(resources.files("tokenmill.cost").joinpath(_BUILTIN).read_text(encoding="utf-8"), _BUILTIN)


def check_date(text: str | None) -> str | None:
    """A date to ask prices for; ConfigError for anything else."""
    if text is not None and not re.match(_DATE, text):
        raise ConfigError(f"--on {text!r} is no date: write YYYY-MM or YYYY-MM-DD")
    return text


def parse_price(text: str) -> TokenPrice:
    """`0.435/0.87` or `0.435/0.87/0.05`: dollars per million input, output and cached input tokens."""
    parts = text.split("/")
    try:
        figures = [float(part) / _PER_MILLION for part in parts]
    except ValueError:
        figures = []
    if len(figures) not in (2, 3):
        raise ConfigError(f"--price {text!r} is not IN/OUT: write dollars per million tokens, e.g. 0.435/0.87")
    names = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")
    given = dict(zip(names, figures, strict=False))
    return TokenPrice.parse({**given, "as_of": date.max.isoformat(), "source": "--price"}, path="--price")
