"""How tokens become bytes and bytes become text, one token at a time: the rules of a tokenizer's `decoder`.

A whole decode looks at all tokens; a stream must give the same text without knowing what comes. Two families of
decoders cover language models: ByteLevel (every token is raw bytes) and sentencepiece-like (tokens are text, except
`<0x..>` byte tokens). Anything else is refused at load. Not responsible for: ids, special tokens (tokenizer.py).
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.core.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token stands for. `is_raw`: bytes that may be part of a character; otherwise whole UTF-8 text."""

    data: bytes
    is_raw: bool


class PieceStream(Protocol):
    """Turns the pieces of one text into text; holds back what later pieces can still change."""

    def push(self, piece: Piece) -> str:
        """Text that is certain now."""
        ...

    def flush(self) -> str:
        """The text ends here: what was held back, unfinished bytes as U+FFFD."""
        ...


class TokenDecoder(Protocol):
    """Immutable; shared by all streams of a tokenizer."""

    def piece(self, token: str) -> Piece: ...

    def stream(self, *, continues: bool) -> PieceStream:
        """`continues`: the text goes on after an earlier one, so rules for the start of a text do not apply."""
        ...


def parse_decoder(spec: dict[str, Any] | None) -> TokenDecoder:
    """`spec`: the `decoder` section of a tokenizer.json. CheckpointError when its text cannot be streamed."""
    steps = _steps(spec)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelDecoder()
    replacements: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        step = steps.pop(0)
        replacements.append((step["pattern"]["String"], step["content"]))
    has_byte_tokens = _take(steps, "ByteFallback") is not None
    is_fused = _take(steps, "Fuse") is not None
    strip = _take(steps, "Strip") if is_fused else None
    if steps or not kinds or (strip is not None and strip["stop"] != 0):
        raise CheckpointError(
            f"the tokenizer's decoder is {' + '.join(kinds) or 'empty'}: possible are ByteLevel, or Replace (strings), "
            "ByteFallback, Fuse and Strip (start) in this order; convert the tokenizer"
        )
    return SentencePieceDecoder(
        tuple(replacements), has_byte_tokens, *((strip["content"], strip["start"]) if strip else ("", 0))
    )


def _steps(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    if spec is None:
        return []
    return list(spec["decoders"]) if spec["type"] == "Sequence" else [spec]


def _take(steps: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return steps.pop(0) if steps and steps[0]["type"] == kind else None


def _char_to_byte() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


CHAR_TO_BYTE = _char_to_byte()


class ByteLevelDecoder:
    """Each character of a token is one byte; a token with other characters (an added token) is its own UTF-8."""

    def piece(self, token: str) -> Piece:
        try:
            return Piece(bytes(CHAR_TO_BYTE[c] for c in token), is_raw=True)
        except KeyError:
            return Piece(token.encode(), is_raw=True)

    def stream(self, *, continues: bool) -> PieceStream:
        return _ByteStream()


class _ByteStream:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: Piece) -> str:
        return self._utf8.decode(piece.data)

    def flush(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


@dataclass(frozen=True, slots=True)
class SentencePieceDecoder:
    """
    replacements      applied to every token, e.g. ("▁", " ")
    has_byte_tokens   `<0x..>` tokens are bytes
    strip_char        up to `num_strip` of it are removed at the start of the text
    """

    replacements: tuple[tuple[str, str], ...]
    has_byte_tokens: bool
    strip_char: str
    num_strip: int

    def piece(self, token: str) -> Piece:
        for old, new in self.replacements:
            token = token.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(token) if self.has_byte_tokens else None
        return Piece(bytes.fromhex(match[1]), is_raw=True) if match else Piece(token.encode(), is_raw=False)

    def stream(self, *, continues: bool) -> PieceStream:
        return _SentencePieceStream(self.strip_char, 0 if continues else self.num_strip)


class _SentencePieceStream:
    """A run of byte tokens is text only as a whole: if it is not UTF-8, each of its bytes becomes U+FFFD."""

    def __init__(self, strip_char: str, num_strip: int) -> None:
        self._strip_char = strip_char
        self._num_strip = num_strip
        self._run = bytearray()

    def push(self, piece: Piece) -> str:
        if piece.is_raw:
            self._run += piece.data
            return ""
        return self._strip(self._end_run() + piece.data.decode())

    def flush(self) -> str:
        return self._strip(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _strip(self, text: str) -> str:
        while text and self._num_strip:
            if text[0] != self._strip_char:
                self._num_strip = 0
                break
            text, self._num_strip = text[1:], self._num_strip - 1
        return text
