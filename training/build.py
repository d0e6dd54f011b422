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


def build(
    out: Path,
    train_chars: int,
    held_out_chars: int,
    *,
    vocab_size: int = VOCAB_SIZE,
    real_chars: int = sys.maxsize,
    tokenizer: Path | None = None,
) -> dict[str, object]:
    """train_chars: of all domains together, of which generated ones get their share; real ones are read whole, or up
    to `real_chars`."""
    out.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        trained = tokenizers.train(_tokenizer_texts(real_chars), vocab_size)
    else:
        trained = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tokenizers.save(trained, out / "tokenizer")
    counts: dict[str, dict[str, int]] = {}
    for domain in DOMAINS:
        counts[domain.name] = {
            "train": _write(out, domain, "train", trained, _train_chars(domain, train_chars, real_chars)),
            "held_out": _write(out, domain, "held_out", trained, held_out_chars),
        }
        print(domain.name, counts[domain.name], flush=True)
    python, num_pieces = sys.version.split()[0], trained.get_vocab_size()
    about: dict[str, object] = {"python": python, "vocab_size": num_pieces, "tokens": counts}
    (out / "corpus.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return about


def _train_chars(domain: Domain, train_chars: int, real_chars: int) -> int:
    return real_chars if domain.make is None else int(train_chars * domain.share)


def _tokenizer_texts(real_chars: int) -> list[str]:
    texts: list[str] = []
    for domain in DOMAINS:
        most = real_chars if domain.make is None else sys.maxsize
        texts += documents(domain, "train", min(most, _BPE_CHARS.get(domain.name, _BPE_GENERATED_CHARS)))
    return texts


def _write(out: Path, domain: Domain, split: str, tokenizer: Tokenizer, num_chars: int) -> int:
    ids: list[int] = []
    source = documents(domain, split, num_chars)
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
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer to use, e.g. tokenmill/models/v4_nano")
    args = parser.parse_args()
    build(args.out, args.train_chars, args.held_out_chars, tokenizer=args.tokenizer)


if __name__ == "__main__":
    main()
