"""A model's tokenizer: text to ids and back, with what a server must know of it. Not responsible for chat or streams.

Nothing changes after loading, and the Rust tokenizer inside is safe to share: any number of threads may use one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tokenmill.core.errors import BadRequestError, CheckpointError
from tokenmill.text.decoders import Piece, TokenDecoder, parse_decoder
from tokenmill.text.source import TokenizerSource, read_folder


def has_tokenizer(path: str | Path) -> bool:
    """Whether `Tokenizer.load` has something to load: a .gguf file, or a folder with tokenizer.json."""
    path = Path(path)
    return path.suffix == ".gguf" or (path / "tokenizer.json").is_file()


def read_source(path: Path) -> TokenizerSource:
    """What `Tokenizer.load` is made of; CheckpointError says what is wrong with it."""
    if path.is_dir():
        return read_folder(path)
    if not path.exists():
        raise CheckpointError(f"{path} does not exist: give a model folder or a .gguf file")
    if path.suffix != ".gguf":
        raise CheckpointError(f"{path} is neither a folder nor a .gguf file: give the folder of the model")
    from tokenmill.text.gguf import read_gguf  # needs the extra package only here

    return read_gguf(path)


class Tokenizer:
    """
    vocab_size         one more than the largest id; a model's output head may have more rows (padding)
    eos_token_ids      ids that end a text, the usual one first
    bos_token_id       id that begins a text, None when the tokenizer has none
    chat_templates     by name; special_tokens by role ("bos_token"), as templates expect them
    special_token_ids  ids without text when special tokens are skipped
    added_token_ids    ids beside the trained vocabulary: special tokens, and markup that is shown
    decoder            how tokens become text (text/decoders.py)
    digest             of the content: tokenizer, templates, special ids
    """

    def __init__(self, source: TokenizerSource, path: Path) -> None:
        self._hf = _build(source.tokenizer_json, path)
        self._hf.no_truncation()
        self._hf.no_padding()
        added: dict[int, Any] = self._hf.get_added_tokens_decoder()
        self.vocab_size: int = 1 + max(self._hf.get_vocab(with_added_tokens=True).values(), default=-1)
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self.added_token_ids = frozenset(added)
        self.special_tokens = dict(source.special_tokens)
        self.eos_token_ids = _eos_token_ids(source, self._hf, path)
        self.bos_token_id: int | None = self._hf.token_to_id(self.special_tokens.get("bos_token", ""))
        self._add_bos_token = source.add_bos_token
        self.chat_templates = dict(source.chat_templates)
        self.digest = source.digest()
        self.decoder: TokenDecoder = _decoder(self._hf, path)
        self._pieces: dict[int, Piece | None] = {}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a Hugging Face folder or a .gguf file; CheckpointError says what is wrong with it."""
        path = Path(path)
        return cls(read_source(path), path)

    def vocabulary(self) -> dict[str, int]:
        """Token -> id, added tokens included: two tokenizers of equal vocabularies mean the same by an id."""
        vocabulary: dict[str, int] = self._hf.get_vocab(with_added_tokens=True)
        return vocabulary

    @property
    def chat_template(self) -> str | None:
        """The default one; None: this model takes plain text only."""
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. Special tokens written in `text` are recognised.

        add_special_tokens  put the begin token in front, for tokenizers that do so; a text that already starts with
                            one does not get a second
        """
        by_tokenizer = add_special_tokens and self._add_bos_token is None
        try:
            # the batch call lets other Python threads run meanwhile; a single encode() does not
            ids: list[int] = self._hf.encode_batch_fast([text], add_special_tokens=by_tokenizer)[0].ids
        except TypeError:
            raise _not_unicode(text) from None
        return self._with_one_begin(ids) if add_special_tokens else ids

    def _with_one_begin(self, ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        if bos is not None and self._add_bos_token and ids[:1] != [bos]:
            return [bos, *ids]
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD, ids without a token have no text."""
        try:
            text: str = self._hf.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise BadRequestError(f"token ids must be integers from 0 to {self.vocab_size - 1}: check them") from None
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of a token given as it stands in the vocabulary."""
        token_id: int | None = self._hf.token_to_id(token)
        return token_id

    def piece(self, token_id: int) -> Piece | None:
        """What one id adds to a text; None for an id without a token."""
        try:
            return self._pieces[token_id]
        except KeyError:
            token = self._hf.id_to_token(token_id)
            return self._pieces.setdefault(token_id, None if token is None else self.decoder.piece(token))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for, also when they are only part of a character."""
        piece = self.piece(token_id)
        return b"" if piece is None else piece.data

    def token_text(self, token_id: int) -> str:
        """The token alone, for people: unfinished bytes as U+FFFD, special tokens by their name."""
        return self.token_bytes(token_id).decode(errors="replace")


def _build(tokenizer_json: bytes, path: Path) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:  # the package raises bare Exception and ValueError
        raise CheckpointError(f"the tokenizer.json of {path} is broken ({error}): download the model again") from None


def _eos_token_ids(source: TokenizerSource, hf: Any, path: Path) -> tuple[int, ...]:
    """The configured ids and the tokenizer's own end token: chat models may name the end of a turn in only one."""
    ids = list(source.eos_token_ids)
    eos = source.special_tokens.get("eos_token")
    if eos is not None:
        eos_id = hf.token_to_id(eos)
        if eos_id is None:
            raise CheckpointError(f"{path}: eos_token is {eos!r}, which its tokenizer.json lacks: correct one of them")
        ids.append(eos_id)
    return tuple(dict.fromkeys(ids))


def _decoder(hf: Any, path: Path) -> TokenDecoder:
    spec = None if hf.decoder is None else json.loads(hf.decoder.__getstate__())
    try:
        return parse_decoder(spec)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}") from None


def _not_unicode(text: str) -> BadRequestError:
    """Why the tokenizer took `text` for no text at all."""
    at = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    return BadRequestError(f"the text holds half of a surrogate pair at character {at}: send valid Unicode")
