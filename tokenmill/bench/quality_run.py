"""Ask an engine several questions at once and keep what its steps tell. Not responsible for: what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenmill.core.errors import from_code
from tokenmill.core.request import Request, SamplingParams, TokenDelta, TokenLogprob
from tokenmill.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Question:
    token_ids: list[int]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Verification:
    drafted: int
    accepted: int


@dataclass(slots=True)
class Answer:
    """prompt_logprobs: of every prompt token from the second on, when asked for."""

    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    verifications: list[Verification] = field(default_factory=list)


def ask(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """All at once, in order; the first typed error is raised."""
    answers = {}
    for i, question in enumerate(questions):
        request = Request(
            request_id=f"quality-{i}",
            model=engine.card.name,
            prompt_token_ids=question.token_ids,
            sampling=question.sampling,
            eos_token_ids=engine.card.eos_token_ids,
        )
        engine.add(request)
        answers[request.request_id] = Answer()
    num_open = len(answers)
    while num_open:
        for delta in engine.step():
            num_open -= _take(answers[delta.request_id], delta)
    return list(answers.values())


def _take(answer: Answer, delta: TokenDelta) -> bool:
    """Whether the answer is finished."""
    if delta.error is not None:
        raise from_code(*delta.error, delta.error_param)
    answer.token_ids += delta.token_ids
    answer.prompt_logprobs = delta.prompt_logprobs or answer.prompt_logprobs
    if delta.num_draft_tokens:
        accepted = delta.num_draft_tokens - delta.num_rejected_tokens
        answer.verifications.append(Verification(delta.num_draft_tokens, accepted))
    return delta.finish_reason is not None
