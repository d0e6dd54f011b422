"""The tokenizer inside a .gguf file, rebuilt for the `tokenizers` package and kept in the user's cache folder.

Reading a vocabulary through the `gguf` package takes seconds, hence the cache. Not responsible for weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.core.errors import CheckpointError, SetupError
from tokenmill.core.paths import cache_folder
from tokenmill.text.gguf_bpe import build_source
from tokenmill.text.source import TokenizerSource

_LOG = logging.getLogger(__name__)
#: Raise it when the rebuilt tokenizer changes, so that old cache entries are not used.
_FORMAT = 1
#: Metadata stands at the start of the file; a vocabulary of 256k tokens with merges takes 12 MB.
_HEAD_BYTES = 64 * 2**20


def read_gguf(path: Path) -> TokenizerSource:
    """CheckpointError when the file is broken or its tokenizer is of an unknown kind."""
    entry = cache_folder("tokenizers") / f"gguf-{_FORMAT}-{_head_digest(path)}.msgpack"
    source = _cached(entry)
    if source is None:
        source, num_metadata_bytes = _parse(path)
        if num_metadata_bytes <= _HEAD_BYTES:  # otherwise the key would not cover all of it
            _store(entry, source)
    return source


def _head_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if head[:4] != b"GGUF":
        raise CheckpointError(f"{path} is not a GGUF file (it does not start with GGUF): download it again")
    return hashlib.sha256(head).hexdigest()


def _parse(path: Path) -> tuple[TokenizerSource, int]:
    """The tokenizer and the length of the metadata in bytes."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise SetupError(f"{path} needs the gguf package: pip install 'tokenmill[gguf]'") from None
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items() if name.startswith("tokenizer.")}
        end = max(field.offset + sum(part.nbytes for part in field.parts) for field in reader.fields.values())
    except Exception as error:  # a truncated file surfaces as any of numpy's errors
        raise CheckpointError(f"{path} is broken ({type(error).__name__}: {error}): download it again") from None
    return build_source(metadata, path), end


def _cached(entry: Path) -> TokenizerSource | None:
    try:
        return msgspec.msgpack.decode(entry.read_bytes(), type=TokenizerSource)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _LOG.warning("cached tokenizer %s is not usable (%s); rebuilding it", entry, error)
        return None


def _store(entry: Path, source: TokenizerSource) -> None:
    """Written beside and moved into place, so that a reader sees all of it or nothing; a full disk only costs time."""
    temporary: Any = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, prefix=".part-", delete=False) as temporary:
            temporary.write(msgspec.msgpack.encode(source))
        os.replace(temporary.name, entry)
    except OSError as error:
        _LOG.warning("the rebuilt tokenizer cannot be cached in %s: %s", entry.parent, error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary.name)
