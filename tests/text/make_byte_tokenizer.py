"""Writes tests/data/byte-tokenizer: 256 tokens, id = byte, no merges. Run it as a script to write it again.

Id 0 (the byte NUL) is the end-of-sequence token: a model that counts upwards meets it last. There is no begin token.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokenmill.text.decoders import CHAR_TO_BYTE

FOLDER = Path(__file__).parent.parent / "data" / "byte-tokenizer"
EOS_TOKEN_ID = 0
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def files() -> dict[str, str]:
    """Text of each file of the folder, by name."""
    hf = Tokenizer(models.BPE(vocab=dict(CHAR_TO_BYTE), merges=[]))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.decoder = decoders.ByteLevel()
    byte_to_char = {byte: char for char, byte in CHAR_TO_BYTE.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": byte_to_char[EOS_TOKEN_ID],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": hf.to_str() + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
