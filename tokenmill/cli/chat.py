"""`tokenmill chat`: a conversation in the terminal, with a running server or one started for it."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    app.command()(chat)


def chat(
    model: str | None = typer.Argument(None, help="Model to start a server for; with --url: the model's name there."),
    url: str | None = typer.Option(None, "--url", help="Talk to this server instead of starting one."),
    api_key: str | None = typer.Option(
        None, "--api-key", help="Bearer key of that server.", envvar="TOKENMILL_API_KEY"
    ),
    system: str | None = typer.Option(None, "--system", help="System message."),
    max_tokens: int = typer.Option(512, help="Most output tokens per answer."),
    temperature: float = typer.Option(0.7, help="0 is greedy."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per answer instead of streamed text."),
) -> None:
    """Chat in the terminal. Empty line or Ctrl-D: leave; /new: start again."""
    from tokenmill.bench.local_server import local_server
    from tokenmill.cli.conversation import Conversation, talk
    from tokenmill.cli.output import note

    conversation = Conversation(system=system, max_tokens=max_tokens, temperature=temperature)
    if url is not None:
        talk(url, model, api_key, conversation, as_json=as_json)
        return
    note(f"starting {model or 'smollm2'} (a server that is running already: --url http://127.0.0.1:8000)")
    with local_server([model or "smollm2"], is_quiet=True) as started:
        talk(started, None, None, conversation, as_json=as_json)
