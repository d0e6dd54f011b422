"""A prompt under construction: texts still to be tokenized, and ids that stand as they are."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.text.tokenizer import Tokenizer


class PromptPieces:
    """Ids may stand only between texts that end and begin with one of `boundaries`: tokens that join with nothing."""

    def __init__(self, boundaries: Sequence[str]) -> None:
        self._boundaries = tuple(boundaries)
        self._pieces: list[str | list[int]] = []
        self._texts: list[str] = []

    @property
    def is_at_boundary(self) -> bool:
        last = self._pieces[-1] if self._pieces else None
        return isinstance(last, str) and last.endswith(self._boundaries)

    def text_piece(self, text: str) -> None:
        if not text:
            return
        if self._pieces and isinstance(self._pieces[-1], str):
            self._pieces[-1] += text
        else:
            assert not self._pieces or text.startswith(self._boundaries), f"text after ids begins with {text[:8]!r}"
            self._pieces.append(text)
        self._texts.append(text)

    def id_piece(self, token_ids: list[int], text: str) -> None:
        """`text` is what stands here when the prompt is shown as text."""
        assert self.is_at_boundary, "ids must follow a boundary"
        self._texts.append(text)
        if token_ids:
            self._pieces.append(token_ids)

    def text(self) -> str:
        return "".join(self._texts)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        ids: list[int] = []
        for piece in self._pieces:
            ids.extend(tokenizer.encode(piece, add_special_tokens=False) if isinstance(piece, str) else piece)
        return ids
