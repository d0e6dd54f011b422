"""Train the byte-level BPE of v4-nano and write it with DeepSeek V4's special tokens as a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenmill.text.encodings import deepseek_v4_format as fmt

PAD = "<｜▁pad▁｜>"
DSML = "｜DSML｜"
#: Ids 0, 1 and 2 as in DeepSeek's own tokenizer; the rest follows the trained pieces.
FIRST = (fmt.BOS, fmt.EOS, PAD)
LAST = (fmt.USER, fmt.ASSISTANT, fmt.THINK, fmt.END_THINK, DSML, fmt.LATEST_REMINDER, *fmt.TASKS.values())
#: Shown to users, as in DeepSeek's tokenizer: markup rather than control.
_VISIBLE = (fmt.THINK, fmt.END_THINK, DSML)
#: Words, digits one by one, punctuation, runs of spaces: a number is never one piece, indentation is.
_SPLIT = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """`vocab_size` counts the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(LAST),
        special_tokens=list(FIRST),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, special=text not in _VISIBLE, normalized=False) for text in LAST])
    assert tokenizer.get_vocab_size() == vocab_size, f"{tokenizer.get_vocab_size()} pieces instead of {vocab_size}"
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": fmt.BOS,
        "eos_token": fmt.EOS,
        "pad_token": PAD,
        "add_bos_token": True,
        "model_max_length": 8192,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
