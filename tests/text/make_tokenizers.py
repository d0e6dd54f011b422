"""Small tokenizers of the kinds that language models have, written as Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tokenmill.text.decoders import CHAR_TO_BYTE

#: Byte-level spelling of texts whose characters are cut across tokens.
_BYTE_CHARS = {byte: char for char, byte in CHAR_TO_BYTE.items()}


def spell(data: bytes) -> str:
    return "".join(_BYTE_CHARS[b] for b in data)


def byte_level_bpe() -> Tokenizer:
    """Bytes, a few longer tokens that end or begin inside characters, special and ordinary added tokens."""
    vocab = dict(CHAR_TO_BYTE)
    merges: list[tuple[str, str]] = []
    for word in ("the", " the", "👩".encode(), "é".encode() + b"\xe2", b"\xe2\x80", b"\xe2\x80\x8d"):
        data = word if isinstance(word, bytes) else word.encode()
        for end in range(2, len(data) + 1):
            left, right = spell(data[: end - 1]), spell(data[end - 1 : end])
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    hf = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    hf.add_tokens([AddedToken("<tool call>", normalized=False), AddedToken("日本", normalized=False)])
    hf.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", hf.token_to_id("<s>"))])
    return hf


def sentencepiece_like() -> Tokenizer:
    """As Llama 2: `▁` for blanks, `<0x..>` byte tokens, the first blank of a text stripped."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words += ["▁", "▁the", "▁▁", "a", "b", "é", "日", "the", "▁a", "\ufffd"]
    vocab = {word: i for i, word in enumerate(words)}
    hf = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "the")], unk_token="<unk>", byte_fallback=True))
    hf.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    hf.add_special_tokens(["<unk>", "<s>", "</s>"])
    return hf


def write_folder(folder: Path, hf: Tokenizer, **configs: Any) -> Path:
    """`configs`: file name without .json -> object, e.g. tokenizer_config={"eos_token": "</s>"}."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(hf.to_str())
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return folder
