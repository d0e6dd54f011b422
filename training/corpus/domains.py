"""Every domain of the corpus: how its documents are made, and how much of the training it gets.

Document `i` of a split is a function of (split, domain, i) alone. Not responsible for: tokens (build.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from training.corpus import code
from training.corpus.agents import transcript
from training.corpus.chats import chat, tool_chat
from training.corpus.copies import copy_task
from training.corpus.records import records
from training.corpus.repeats import repeats
from training.corpus.stories import story
from training.corpus.sums import sums


@dataclass(frozen=True, slots=True)
class Domain:
    """
    share      of the trained tokens
    make       a document from a generator of random numbers; None: real text, see `documents`
    is_chat    its documents are whole conversations, which begin with the begin token themselves
    """

    name: str
    share: float
    make: Callable[[Random], str] | None
    is_chat: bool = False


DOMAINS = (
    Domain("code", 0.46, None),
    Domain("manual", 0.02, None),
    Domain("stories", 0.05, story),
    Domain("sums", 0.01, sums),
    Domain("records", 0.02, records),
    Domain("chat", 0.06, chat, is_chat=True),
    Domain("tools", 0.22, tool_chat, is_chat=True),
    Domain("agents", 0.07, transcript, is_chat=True),
    Domain("copies", 0.04, copy_task),
    Domain("repeats", 0.05, repeats),
)


def documents(domain: Domain, split: str, num_chars: int) -> Iterator[str]:
    """Documents of a split ("train" or "held_out") with about so many characters; real text ends when it ends."""
    rng = Random(f"{split}/{domain.name}")
    if domain.make is not None:
        source: Iterator[str] = iter(lambda: domain.make(rng), None)  # type: ignore[misc, arg-type]
    else:
        texts = _real(domain.name, split)
        rng.shuffle(texts)
        source = iter(texts)
    done = 0
    for text in source:
        yield text
        done += len(text)
        if done >= num_chars:
            return


def _real(name: str, split: str) -> list[str]:
    if name == "code":
        return list((code.training_files() if split == "train" else code.held_out_files()).values())
    texts = code.manual()
    return [text for i, text in enumerate(texts) if (i % 20 == 0) == (split == "held_out")]
