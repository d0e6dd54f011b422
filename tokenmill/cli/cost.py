"""`tokenmill cost`: what was spent, by a running server or a ledger file; margins; what a device-hour costs to own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import JSON_OPTION, note, print_json, print_table

_FILTERS = {
    "window": "Only the last 15m, 24h, 7d …",
    "since": "Only from this time on, in seconds since 1970.",
    "until": "Only up to this time, in seconds since 1970.",
    "model": "Only this model.",
    "tenant": "Only this tenant.",
    "session": "Only this agent session.",
    "by": "Cut into groups: model, tenant, session, minute, hour or day.",
}


def _filter(name: str) -> Any:
    return typer.Option(None, f"--{name}", help=_FILTERS[name], metavar="TEXT")


def build_app() -> typer.Typer:
    app = typer.Typer(help="What tokens cost: the ledger, margins, cost of ownership, prices.")
    app.callback(invoke_without_command=True)(cost)
    from tokenmill.cli import cost_prices

    cost_prices.add_to(app)
    return app


def cost(
    context: typer.Context,
    url: str = typer.Option("http://127.0.0.1:8000", "--url", help="The server to ask."),
    file: Path | None = typer.Option(None, "--from", help="Read this ledger file (JSON lines) instead of a server's."),
    api_key: str | None = typer.Option(None, "--api-key", envvar="TOKENMILL_API_KEY", help="Key of the server."),
    window: str | None = _filter("window"),
    since: str | None = _filter("since"),
    until: str | None = _filter("until"),
    model: str | None = _filter("model"),
    tenant: str | None = _filter("tenant"),
    session: str | None = _filter("session"),
    sub_agents: bool = typer.Option(False, "--sub-agents", help="With --session: count its sub-agents too."),
    by: str | None = _filter("by"),
    request: str | None = typer.Option(None, "--request", help="Only this request, by its id."),
    as_json: bool = JSON_OPTION,
) -> None:
    """What was spent, line by line; the lines add up to the bill."""
    if context.invoked_subcommand is not None:
        return
    named = {"window": window, "since": since, "until": until, "model": model, "tenant": tenant, "session": session}
    asked = {name: value for name, value in (named | {"by": by}).items() if value is not None}
    if sub_agents:
        asked["sub_agents"] = "true"
    if file is not None:
        answer = ask_file(file, asked, request)
    else:
        answer = ask_server(url, asked | ({"request_id": request} if request else {}), api_key)
    if as_json or request:
        print_json(answer)
    else:
        _print(answer)


def ask_file(path: Path, asked: dict[str, str], request: str | None) -> dict[str, Any]:
    import time

    from tokenmill.core.errors import BadRequestError, ConfigError
    from tokenmill.cost.journal import read_journal
    from tokenmill.cost.ledger import Ledger
    from tokenmill.cost.report import parse_query, report

    try:
        with path.open("rb") as lines:
            journal = read_journal(lines, str(path))
    except OSError as error:
        raise ConfigError(f"ledger {path} cannot be read ({error.strerror}): give the file of serve --ledger") from None
    if request is not None:
        rows = [r for r in journal.requests if r["request_id"] == request or r["request_id"].startswith(f"{request}-")]
        if not rows:
            raise BadRequestError(f"request {request!r} is not in {path}", param="request_id")
        return {"object": "cost.request", "request_id": request, "choices": rows}
    ledger = Ledger()
    ledger.restore_parents(journal.parents)
    return report(journal.cells, parse_query(asked, time.time()), ledger.spending.line_of)


def ask_server(url: str, asked: dict[str, str], api_key: str | None) -> dict[str, Any]:
    import json
    import urllib.error
    import urllib.parse
    import urllib.request

    from tokenmill.core.errors import BadRequestError, UnavailableError

    target = f"{url.rstrip('/').removesuffix('/v1')}/v1/cost?{urllib.parse.urlencode(asked)}"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(target, headers=headers), timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        body = error.read().decode(errors="replace")
        try:
            message = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = f"status {error.code}: {body[:200]}"
        raise BadRequestError(f"{url} says: {message}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UnavailableError(f"no tokenmill server answers at {url} ({reason}): give --url or --from FILE") from None


def _print(answer: dict[str, Any]) -> None:
    groups = answer.get("groups")
    if groups is not None:
        name = answer["query"]["by"]
        headers = (
            name,
            "usd",
            "charged usd",
            "seconds",
            "requests",
            "prompt",
            "cached",
            "output",
            "$/Mtok",
            "saved usd",
        )
        print_table(headers, [_group_row(group, name) for group in groups])
    seconds, total = answer["seconds"], answer["usd"]["total"]
    rows = [
        (line, f"{seconds[line]:.3f}", f"{usd:.9f}", f"{usd / total:.1%}" if total else "")
        for line, usd in answer["usd"].items()
        if line not in ("total", "charged") and (usd or seconds[line])
    ]
    print_table(("line", "seconds", "usd", "share"), [*rows, ("total", f"{seconds['total']:.3f}", f"{total:.9f}", "")])
    _print_figures(answer)


def _group_row(group: dict[str, Any], name: str) -> tuple[object, ...]:
    tokens, per_mtok = group["tokens"], group["usd_per_mtok"]["total"]
    return (
        _when(group[name]) if name in ("minute", "hour", "day") else group[name],
        f"{group['usd']['total']:.9f}",
        f"{group['usd']['charged']:.9f}",
        f"{group['seconds']['total']:.3f}",
        group["requests"]["ended"],
        tokens["prompt"],
        tokens["cached"],
        tokens["output"],
        None if per_mtok is None else f"{per_mtok:.4g}",
        f"{group['avoided']['usd']:.9f}",
    )


def _when(unix_s: str) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(int(unix_s), datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _print_figures(answer: dict[str, Any]) -> None:
    tokens, avoided, energy = answer["tokens"], answer["avoided"], answer["energy"]
    prices = [f"{kind} ${usd:.4g}" for kind, usd in answer["usd_per_mtok"].items() if usd is not None]
    print(f"tokens: prompt {tokens['prompt']} (cached {tokens['cached']}), output {tokens['output']}")
    print(f"per million tokens: {', '.join(prices) or 'no tokens yet'}")
    print(f"the prefix cache avoided {avoided['seconds']:.3f} s of prefill, ${avoided['usd']:.9f}")
    print(f"energy: {energy['joules']:.1f} J {energy['source']}")
    if "usd_with_overhead" in answer:
        print(f"with its part of idle, start-up and losses: ${answer['usd_with_overhead']:.9f}")
    if "balance" in answer:
        note(f"unexplained: {answer['balance']['unexplained_seconds']:.9f} s of all process time")
