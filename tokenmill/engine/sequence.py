"""The mutable run of one request inside one engine: its tokens, progress and end."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.request import FinishReason, Request
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar


@dataclass(slots=True, eq=False)
class Sequence:
    """
    max_tokens            resolved: most output tokens
    arrival_order         ties of priority and arrival are broken by it
    token_ids             prompt and output
    num_computed_tokens   tokens whose cache rows exist
    num_protected_tokens  rows below it are shared in the groups without a window (SequencePlan)
    num_cached_tokens     of the prompt, how many came from the prefix cache at the first start; None before it
    block_hashes          of the full blocks of token_ids, extended lazily
    pending_first         no delta has gone out yet
    grammar               what the output keeps to, moved along by the scheduler, read by the runner
    """

    request: Request
    max_tokens: int
    arrival_order: int
    token_ids: list[int]
    block_hashes: list[bytes]
    num_computed_tokens: int = 0
    num_protected_tokens: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    pending_first: bool = True
    grammar: SequenceGrammar | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """Only its newest token is not computed yet."""
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    @property
    def num_useful_drafts(self) -> int:
        """More drafts than this could not all become output: the step draws one token behind them."""
        return max(0, self.max_tokens - self.num_output_tokens - 1)

    @property
    def order(self) -> tuple[int, float, int]:
        """Who runs first: lower priority value, then earlier arrival."""
        return (self.request.priority, self.request.arrival_s, self.arrival_order)

    def append(self, token_id: int) -> None:
        """Take one drawn token and decide whether the sequence ends with it."""
        self.token_ids.append(token_id)
        num_output_tokens = self.num_output_tokens
        if ends_text(self.request, num_output_tokens, token_id):
            self.finish_reason, self.stop_token_id = FinishReason.STOP, token_id
        elif num_output_tokens >= self.max_tokens:
            self.finish_reason = FinishReason.LENGTH


def ends_text(request: Request, num_output_tokens: int, token_id: int) -> bool:
    """Does the text end with `token_id` as its num_output_tokens-th output token?"""
    sampling = request.sampling
    if num_output_tokens <= sampling.min_tokens:
        return False
    return token_id in sampling.stop_token_ids or (not sampling.ignore_eos and token_id in request.eos_token_ids)
