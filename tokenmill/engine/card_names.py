"""What a card says of how a model's messages are written and its output is read, from settings and tokenizer files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.engine.config import EngineConfig
from tokenmill.engine.structured.base import GRAMMAR_BACKENDS
from tokenmill.text.chat import CHAT_ENCODINGS
from tokenmill.text.parsers.registry import choose_parsers
from tokenmill.text.tokenizer import read_source


def text_names(
    config: EngineConfig, *, name: str, architecture: str, tokenizer_path: Path | None, chat_encoding: str = "jinja"
) -> dict[str, Any]:
    """Fields of ModelCard: chat_encoding, tool_parser, reasoning_parser. ConfigError for a name that is unknown.

    chat_encoding  the model's own, where the settings name no other
    """
    encoding = config.chat_encoding or chat_encoding
    CHAT_ENCODINGS.load(encoding)
    if config.grammar_backend not in GRAMMAR_BACKENDS.names():
        GRAMMAR_BACKENDS.load(config.grammar_backend)  # says which there are
    templates = {} if tokenizer_path is None else read_source(tokenizer_path).chat_templates
    parsers = choose_parsers(
        model_name=name,
        architecture=architecture,
        chat_template="\n".join(templates.values()),
        chat_encoding=encoding,
        tool_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
    )
    return {"chat_encoding": encoding, "tool_parser": parsers.tools, "reasoning_parser": parsers.reasoning}
