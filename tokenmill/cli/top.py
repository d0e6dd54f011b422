"""`tokenmill top`: a running server's figures in the terminal, from the stream that its live page reads."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    app.command()(top)


def top(
    url: str = typer.Option("http://127.0.0.1:8000", "--url", help="The server to watch."),
    api_key: str | None = typer.Option(None, "--api-key", help="Its bearer key.", envvar="TOKENMILL_API_KEY"),
    count: int = typer.Option(0, min=0, help="Leave after so many looks; 0: stay until interrupted."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per look instead of a screen."),
) -> None:
    """Watch throughput, latency, cache, price and workers of a running server. Ctrl-C leaves."""
    import asyncio

    from tokenmill.cli.watch import show_lines, show_screen, watch

    looks = watch(url, api_key, count)
    asyncio.run(show_lines(looks) if as_json else show_screen(looks, url))
