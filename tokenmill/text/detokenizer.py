"""Token ids to text as they come, equal to decoding them all at once. Not responsible for stop strings."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one output; each token is looked at once, so a long output costs no more per token than a short one.

    Whatever way the ids are cut, the joined texts of `push`, `extend` and the final `flush` equal
    `tokenizer.decode(all ids)`. A character is never split: its bytes are held back until it is whole, and become
    U+FFFD when they turn out to be none.

    skip_special_tokens  special tokens have no text
    continues            the output goes on after a prompt: a sentencepiece-like tokenizer then keeps the space before
                         the first word (decode(prompt + output) minus decode(prompt), not decode(output))
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._stream = tokenizer.decoder.stream(continues=continues)

    def push(self, token_id: int) -> str:
        """The text that became certain with this token, often none."""
        piece = self._tokenizer.piece(token_id)
        return "" if piece is None or token_id in self._skipped_ids else self._stream.push(piece)

    def extend(self, token_ids: Iterable[int]) -> str:
        return "".join([self.push(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """The output ends here: the text held back, with bytes that are no character as U+FFFD."""
        return self._stream.flush()
