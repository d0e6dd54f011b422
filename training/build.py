"""Build the corpus: train the tokenizer, write each domain's tokens to one file per split.

    python -m training.build --out build/corpus

Not responsible for: what the documents say (corpus/), batches (data.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tokenmill.text.encodings.deepseek_v4_format import BOS, EOS
from training import tokenizer as tokenizers
from training.corpus.domains import DOMAINS, Domain, documents

VOCAB_SIZE = 2048
#: Characters per domain of the tokenizer's training text: real text first, the generated kinds are soon learnt.
_BPE_CHARS = {"code": 5_000_000, "manual": 500_000}
_BPE_GENERATED_CHARS = 60_000


def build(out: Path, train_chars: int, held_out_chars: int, vocab_size: int = VOCAB_SIZE) -> dict[str, object]:
    """train_chars: of a domain with share 1; generated domains get their share of it, real ones all there is."""
    trained = tokenizers.train(_tokenizer_texts(), vocab_size)
    tokenizers.save(trained, out / "tokenizer")
    counts: dict[str, dict[str, int]] = {}
    for domain in DOMAINS:
        counts[domain.name] = {
            "train": _write(out, domain, "train", trained, int(train_chars * domain.share)),
            "held_out": _write(out, domain, "held_out", trained, held_out_chars),
        }
        print(domain.name, counts[domain.name], flush=True)
    about: dict[str, object] = {"python": sys.version.split()[0], "vocab_size": vocab_size, "tokens": counts}
    (out / "corpus.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return about


def _tokenizer_texts() -> list[str]:
    texts: list[str] = []
    for domain in DOMAINS:
        texts += documents(domain, "train", _BPE_CHARS.get(domain.name, _BPE_GENERATED_CHARS))
    return texts


def _write(out: Path, domain: Domain, split: str, tokenizer: Tokenizer, num_chars: int) -> int:
    limit = num_chars if domain.make is not None or split == "held_out" else sys.maxsize
    ids: list[int] = []
    source = documents(domain, split, limit)
    while texts := list(islice(source, 256)):
        marked = texts if domain.is_chat else [BOS + text + EOS for text in texts]
        for encoding in tokenizer.encode_batch_fast(marked, add_special_tokens=False):
            ids += encoding.ids
    np.array(ids, dtype=np.uint16).tofile(out / f"{domain.name}.{split}.u16")
    return len(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train-chars", type=int, default=45_000_000, help="of all domains together")
    parser.add_argument("--held-out-chars", type=int, default=150_000, help="of each domain")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    build(args.out, args.train_chars, args.held_out_chars)


if __name__ == "__main__":
    main()
