"""GGUF's `tokenizer.*` metadata to a `tokenizers` BPE tokenizer. Not responsible for reading the file (gguf.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenmill.core.errors import CheckpointError
from tokenmill.text.source import TokenizerSource

_PREFIX = "tokenizer.ggml."
#: gguf.TokenType: tokens that control the model, and added tokens that are ordinary text
_CONTROL, _USER_DEFINED = 3, 4
#: Names of the ids that end a text or a turn, the usual one first
_EOS_NAMES = ("eos_token_id", "eot_token_id", "eom_token_id")
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

#: How Llama 3 and Qwen 2 split text before BPE: the `pre_tokenizer` patterns of the tokenizer.json files that
#: meta-llama/Meta-Llama-3-8B and Qwen/Qwen2-7B publish (2024). They differ in how many digits stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(*, use_regex: bool) -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _gpt2() -> Any:
    return _byte_level(use_regex=True)


def _smollm() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(use_regex=True)])


def _words(digits: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    pattern = Regex(_WORDS.replace("{DIGITS}", digits))
    split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, _byte_level(use_regex=False)])


#: By `tokenizer.ggml.pre`, the name that llama.cpp's converter gives (src/llama-vocab.cpp there, 2025).
_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "llama-bpe": lambda: _words("{1,3}"),
    "qwen2": lambda: _words(""),
    "smollm": _smollm,
}


def build_source(metadata: dict[str, Any], path: Path) -> TokenizerSource:
    """`metadata`: the file's `tokenizer.*` fields as Python values. `path` is named in errors."""
    kind, pre = metadata.get(_PREFIX + "model"), metadata.get(_PREFIX + "pre")
    if kind != "gpt2":
        raise CheckpointError(f"{path} has a tokenizer of kind {kind!r}: possible is 'gpt2' (BPE); use the HF folder")
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{path} has the pre-tokenizer {pre!r}: possible are {', '.join(_PRE_TOKENIZERS)}; use the HF folder"
        )
    try:
        return _source(metadata, pre)
    except Exception as error:  # missing fields, wrong types, merges of unknown tokens (a bare Exception)
        raise CheckpointError(
            f"the tokenizer in {path} is broken ({type(error).__name__}: {error}): download it again"
        ) from None


def _source(metadata: dict[str, Any], pre: str) -> TokenizerSource:
    tokens: list[str] = metadata[_PREFIX + "tokens"]
    hf = _bpe(tokens, metadata[_PREFIX + "merges"], pre)
    _add_tokens(hf, tokens, metadata[_PREFIX + "token_type"])
    ends = [i for name in _EOS_NAMES if (i := metadata.get(_PREFIX + name)) is not None]
    roles = {role: metadata.get(f"{_PREFIX}{name}_token_id") for role, name in _ROLES.items()}
    return TokenizerSource(
        tokenizer_json=hf.to_str().encode(),
        eos_token_ids=tuple(dict.fromkeys(ends)),
        chat_templates=_chat_templates(metadata),
        special_tokens={role: tokens[i] for role, i in roles.items() if i is not None},
        add_bos_token=bool(metadata.get(_PREFIX + "add_bos_token", pre == "llama-bpe")),
    )


def _bpe(tokens: list[str], merges: list[str], pre: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ValueError(f"{len(tokens) - len(vocab)} tokens stand in the vocabulary twice")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    hf = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        hf.normalizer = normalizers.NFC()
    hf.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    hf.decoder = decoders.ByteLevel()
    return hf


def _add_tokens(hf: Any, tokens: list[str], types: list[int]) -> None:
    from tokenizers import AddedToken

    if len(types) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens but {len(types)} token types")
    pairs = list(zip(tokens, types, strict=True))
    hf.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in pairs if kind == _CONTROL])
    hf.add_tokens([AddedToken(t, special=False, normalized=False) for t, kind in pairs if kind == _USER_DEFINED])


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    templates = {}
    for key, value in metadata.items():
        head, dot, name = key.removeprefix("tokenizer.").partition(".")
        if head == "chat_template":
            templates[name if dot else "default"] = value
    return templates
