"""JSON objects and arrays of everyday kinds, in compact and in indented spelling."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from training.corpus.words import CITIES, COLOURS, FOODS, JOBS, MONTHS, NAMES, THINGS


def records(rng: Random) -> str:
    make = rng.choice(_KINDS)
    items = [make(rng) for _ in range(rng.randint(2, 6))]
    value: Any = items if rng.random() < 0.5 else {"count": len(items), "items": items}
    return json.dumps(value, indent=rng.choice((None, 2, 2)))


def _person(rng: Random) -> dict[str, Any]:
    name = rng.choice(NAMES)
    return {
        "name": name,
        "age": rng.randint(5, 90),
        "job": rng.choice(JOBS),
        "city": rng.choice(CITIES),
        "email": f"{name.lower()}{rng.randint(1, 99)}@example.com",
        "active": rng.random() < 0.7,
    }


def _order(rng: Random) -> dict[str, Any]:
    price, count = rng.randint(1, 80), rng.randint(1, 9)
    return {
        "order_id": rng.randint(1000, 9999),
        "item": rng.choice(THINGS),
        "colour": rng.choice(COLOURS),
        "price": price,
        "count": count,
        "total": price * count,
        "paid": rng.random() < 0.5,
    }


def _event(rng: Random) -> dict[str, Any]:
    return {
        "date": f"{rng.randint(2020, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        "month": rng.choice(MONTHS),
        "city": rng.choice(CITIES),
        "level": rng.choice(("info", "warning", "error")),
        "tags": rng.sample(FOODS, rng.randint(1, 3)),
        "note": None,
    }


_KINDS = (_person, _order, _event)
