"""What a worker announces about the model it serves; a frontend needs nothing else of the model."""

from __future__ import annotations

import msgspec


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """
    name                what clients call it
    architecture        for people, e.g. "llama"
    max_model_len       context limit in tokens (prompt + output)
    kv_capacity_tokens  longest sequence that the worker's KV pools can hold
    max_num_seqs        most sequences in one step
    vocab_size          rows of the output head
    block_size          source tokens per logical block
    weights_version     root of the cache keys (core/kv_hashes)
    hash_algorithm      of the cache keys
    tokenizer_path      folder or file from which text/ loads the tokenizer; None: token-id prompts only
    tokenizer_digest    digest of that tokenizer's content
    eos_token_ids       ids that end a text
    chat_encoding       name of the encoding in text/ ("jinja" by default)
    tool_parser, reasoning_parser  names in text/parsers of what reads its output; None: no such markup is expected
    num_parameters      for people and the cost model
    dtype               of weights and activations, e.g. "bfloat16"
    """

    name: str
    architecture: str
    max_model_len: int
    kv_capacity_tokens: int
    max_num_seqs: int
    vocab_size: int
    block_size: int
    weights_version: str
    hash_algorithm: str = "xxh3"
    tokenizer_path: str | None = None
    tokenizer_digest: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_encoding: str = "jinja"
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    num_parameters: int = 0
    dtype: str = "float32"
    created_s: int = 0
