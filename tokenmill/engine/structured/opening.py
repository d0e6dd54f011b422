"""From a card to its grammar compiler: tokenizer, backend, threads. Torch-free; slow, so it runs beside the steps."""

from __future__ import annotations

from tokenmill.core.errors import CapabilityError
from tokenmill.core.model_card import ModelCard
from tokenmill.engine.structured.base import GRAMMAR_BACKENDS
from tokenmill.engine.structured.compiler import GrammarCompiler
from tokenmill.text.tokenizer import Tokenizer


def open_compiler(card: ModelCard, backend_name: str, deadline_s: float) -> GrammarCompiler:
    """CapabilityError when this model, or this installation, cannot keep to a grammar."""
    if card.tokenizer_path is None:
        raise CapabilityError(f"model {card.name!r} has no tokenizer, so its output cannot be held to a grammar")
    tokenizer = Tokenizer.load(card.tokenizer_path)
    if card.eos_token_ids:
        tokenizer.eos_token_ids = card.eos_token_ids  # what ends a sequence is what may end a grammar
    if not tokenizer.eos_token_ids:
        raise CapabilityError(f"model {card.name!r} has no end token, so its output cannot be held to a grammar")
    try:
        factory = GRAMMAR_BACKENDS.load(backend_name)
    except ImportError as error:
        raise CapabilityError(f"grammar backend {backend_name!r} is not installed ({error}): install it") from None
    return GrammarCompiler(factory(tokenizer, card.vocab_size), deadline_s=deadline_s)
