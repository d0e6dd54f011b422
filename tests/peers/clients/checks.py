"""Runs the checks of one Python client and prints the result as one JSON line. Uses the standard library alone."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

URL = os.environ["TOKENMILL_URL"]
MODEL = os.environ["TOKENMILL_MODEL"]
KEY = os.environ["TOKENMILL_KEY"]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
#: Long enough for its beginning to be found in the prefix cache the second time.
LONG = "Read this list of words and say which comes last. " + " ".join(f"word{i}" for i in range(60))


def run(packages: list[str], checks: dict[str, Callable[[], Any]]) -> None:
    """A check passes when it returns; what it returns is shown."""
    results = {name: _run_one(check) for name, check in checks.items()}
    versions = {name: importlib.metadata.version(name) for name in packages}
    versions["python"] = sys.version.split()[0]
    print(json.dumps({"versions": versions, "checks": results}, default=str))


def _run_one(check: Callable[[], Any]) -> dict[str, Any]:
    began_s = time.monotonic()
    try:
        result = {"ok": True, "detail": check()}
    except Exception as error:
        result = {"ok": False, "detail": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-1500:]}
    return result | {"seconds": round(time.monotonic() - began_s, 2)}


def check_cost(cost: Any) -> dict[str, Any]:
    assert cost["usd"] > 0 and cost["joules"] > 0 and cost["energy_source"] in ("measured", "modelled"), cost
    return dict(cost)


def check_city(text: str) -> dict[str, Any]:
    value = json.loads(text)
    assert isinstance(value, dict) and isinstance(value["city"], str) and len(value) == 1, value
    return value
