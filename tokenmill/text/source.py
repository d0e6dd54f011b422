"""What a tokenizer is made of, read from a Hugging Face folder. Not responsible for using it (tokenizer.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.core.errors import CheckpointError

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class TokenizerSource(msgspec.Struct, frozen=True, kw_only=True):
    """
    tokenizer_json   of the `tokenizers` package
    eos_token_ids    ids that the model's configuration names as ends of a text
    chat_templates   by name; the one used when nobody asks for another is "default"
    special_tokens   by role ("bos_token": "<s>"), as chat templates expect them
    add_bos_token    whether texts get the begin token in front; None: tokenizer.json says it
    """

    tokenizer_json: bytes
    eos_token_ids: tuple[int, ...] = ()
    chat_templates: dict[str, str] = {}
    special_tokens: dict[str, str] = {}
    add_bos_token: bool | None = None

    def digest(self) -> str:
        """Hex digest of the content; equal for equal tokenizers wherever they lie."""
        return hashlib.sha256(msgspec.msgpack.encode(self, order="deterministic")).hexdigest()


def read_folder(folder: Path) -> TokenizerSource:
    """Read tokenizer.json and what stands beside it. CheckpointError when a file is missing or broken."""
    tokenizer_json = _read_tokenizer_json(folder)
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    special_tokens = {name: text for name in _TOKEN_NAMES if (text := _token_text(config.get(name))) is not None}
    return TokenizerSource(
        tokenizer_json=tokenizer_json,
        eos_token_ids=_eos_token_ids(folder),
        chat_templates=_chat_templates(folder, config.get("chat_template")),
        special_tokens=special_tokens,
        add_bos_token=add_bos if isinstance(add_bos := config.get("add_bos_token"), bool) else None,
    )


def _read_tokenizer_json(folder: Path) -> bytes:
    path = folder / "tokenizer.json"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        hint = "convert its tokenizer.model with transformers" if (folder / "tokenizer.model").exists() else "add it"
        raise CheckpointError(f"{folder} has no tokenizer.json, the only kind of tokenizer read here: {hint}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, {} when there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}): download the model again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not an object: download the model again")
    return value


def _token_text(token: Any) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _eos_token_ids(folder: Path) -> tuple[int, ...]:
    """From generation_config.json; from config.json, which it is derived from, where that is silent."""
    for name in ("generation_config.json", "config.json"):
        ids = _int_ids(folder / name, _read_json(folder / name))
        if ids:
            return tuple(ids)
    return ()


def _int_ids(path: Path, config: dict[str, Any]) -> list[int]:
    inner = config.get("text_config")
    value = config.get("eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(i) is not int or i < 0 for i in ids):
        raise CheckpointError(f"{path}: eos_token_id={value!r}: give a token id or a list of them")
    return ids


def _chat_templates(folder: Path, in_config: Any) -> dict[str, str]:
    """Named templates; a chat_template.jinja file wins over tokenizer_config.json, as in transformers."""
    templates = _templates_in_config(folder, in_config)
    legacy = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(legacy, str):
        templates["default"] = legacy
    extra = folder / "additional_chat_templates"
    for path in sorted(extra.glob("*.jinja")) if extra.is_dir() else []:
        templates[path.stem] = _read_text(path)
    if (folder / "chat_template.jinja").exists():
        templates["default"] = _read_text(folder / "chat_template.jinja")
    return templates


def _templates_in_config(folder: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        templates = {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError):
        templates = {"": None}
    if not all(isinstance(part, str) for pair in templates.items() for part in pair):
        raise CheckpointError(
            f"{folder}/tokenizer_config.json: chat_template is neither a text nor a list of names and templates"
        )
    return templates


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not readable text ({error}): download the model again") from None
