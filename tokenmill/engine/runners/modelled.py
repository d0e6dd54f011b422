"""A runner without a model: it counts, from token to token or to the next one that a grammar takes.

Step times are modelled. The twin runs the production scheduler over it, and process tests use it as an engine whose
every duplicate, gap or mix-up of tokens shows at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenmill.core.request import Request, TokenLogprob
from tokenmill.core.step import SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.structured.base import GrammarLimitError
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.engine.structured.step_masks import too_costly


class ModelledRunner:
    """
    vocab_size  counting wraps around at it
    step_s      modelled seconds of a step
    pace        spends those seconds: time.sleep in a process, clock.advance on virtual time
    """

    def __init__(self, vocab_size: int, step_s: Callable[[StepPlan], float], pace: Callable[[float], None]) -> None:
        self._vocab_size = vocab_size
        self._step_s = step_s
        self._pace = pace
        self._requests: dict[str, Request] = {}
        self._token_ids: dict[str, list[int]] = {}
        self._grammars: dict[str, SequenceGrammar] = {}

    def add(self, request: Request, grammar: SequenceGrammar | None = None) -> None:
        assert request.request_id not in self._requests, f"duplicate {request.request_id}"
        self._requests[request.request_id] = request
        self._token_ids[request.request_id] = [*request.prompt_token_ids, *request.output_token_ids]
        if grammar is not None:
            self._grammars[request.request_id] = grammar

    def remove(self, request_id: str) -> None:
        del self._requests[request_id], self._token_ids[request_id]
        self._grammars.pop(request_id, None)

    def run(self, plan: StepPlan) -> StepResult:
        self._pace(self._step_s(plan))
        return StepResult(tuple(self._count(planned) for planned in plan.sequences))

    def _count(self, planned: SequencePlan) -> SequenceResult:
        token_ids = self._token_ids[planned.request_id]
        end = planned.num_computed_tokens + planned.num_scheduled_tokens
        assert end <= len(token_ids), f"{planned.request_id}: planned to {end} of {len(token_ids)} tokens"
        if not planned.is_sampling:
            return SequenceResult(planned.request_id, (), planned.num_scheduled_tokens)
        sampling = self._requests[planned.request_id].sampling
        try:
            next_id = self._allowed(planned.request_id, (token_ids[-1] + 1) % self._vocab_size)
        except GrammarLimitError as error:
            return too_costly(planned, error)
        is_first = len(token_ids) == len(self._requests[planned.request_id].prompt_token_ids)
        prompt_logprobs = None
        if is_first and sampling.prompt_logprobs is not None:
            prompt_logprobs = tuple(TokenLogprob(token_id, 0.0) for token_id in token_ids[1:])
        token_ids.append(next_id)
        logprobs = None if sampling.logprobs is None else (TokenLogprob(next_id, 0.0, ((next_id, 0.0),)),)
        return SequenceResult(planned.request_id, (next_id,), planned.num_scheduled_tokens, logprobs, prompt_logprobs)

    def _allowed(self, request_id: str, token_id: int) -> int:
        """The first id from `token_id` on, around the vocabulary, that the request's grammar takes."""
        grammar = self._grammars.get(request_id)
        mask = None if grammar is None else grammar.mask()
        if mask is None:
            return token_id
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        return int(allowed[np.searchsorted(allowed, token_id) % len(allowed)])

    def memory_report(self) -> dict[str, int]:
        return {}
