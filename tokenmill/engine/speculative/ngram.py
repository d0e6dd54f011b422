"""Proposer without a model: what followed the last time the newest tokens stood together.

Looks in the request's prediction, its own prompt and output, and what earlier requests of its session said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.request import Request
from tokenmill.engine.speculative.base import NO_PROPOSAL, DraftWish, ObservedStep, Proposal
from tokenmill.engine.speculative.build import BuildContext
from tokenmill.engine.speculative.suffix_index import SuffixIndex
from tokenmill.models.base import Caches

#: Sessions whose last texts are kept, and tokens kept of each.
_MOST_SESSIONS = 256
_MOST_SESSION_TOKENS = 16_384

_SessionKey = tuple[str | None, str | None, str]


def build(context: BuildContext) -> NgramProposer:
    config = context.config
    context.refuse_model("ngram")
    return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)


class NgramProposer:
    """See base.Proposer."""

    name = "ngram"
    features = None

    def __init__(self, shortest: int = 2, longest: int = 8) -> None:
        self._shortest, self._longest = shortest, longest
        self._texts: dict[str, _Text] = {}
        self._sessions: OrderedDict[_SessionKey, tuple[int, ...]] = OrderedDict()

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return ()

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        return {}

    def bind(self, target: Caches, own: Caches) -> None:
        pass

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        return [self._propose(wish) for wish in wishes]

    def _propose(self, wish: DraftWish) -> Proposal:
        text = self._texts.get(wish.request_id) or self._start(wish)
        drafts = text.continuation(wish.num_drafts)
        return Proposal(tuple(drafts)) if drafts else NO_PROPOSAL

    def _start(self, wish: DraftWish) -> _Text:
        index = SuffixIndex(self._shortest, self._longest)
        key = _session_key(wish.request)
        if key is not None and key in self._sessions:
            index.add_document(self._sessions[key])
        index.add_document(wish.request.prediction_token_ids)
        text = _Text(wish.request, wish.token_ids, index)
        self._texts[wish.request_id] = text
        return text

    def observe(self, step: ObservedStep) -> None:
        """Nothing: tokens are read when drafts are wanted."""

    def lapse(self, request_id: str) -> None:
        pass

    def rows_from(self, request_id: str) -> int | None:
        return None

    def forget(self, request_id: str) -> None:
        text = self._texts.pop(request_id, None)
        key = None if text is None else _session_key(text.request)
        if text is not None and key is not None:
            self._sessions[key] = tuple(text.token_ids[-_MOST_SESSION_TOKENS:])
            self._sessions.move_to_end(key)
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)


class _Text:
    """One request's text and where it is in what the client predicted."""

    def __init__(self, request: Request, token_ids: Sequence[int], index: SuffixIndex) -> None:
        self.request, self.token_ids = request, token_ids
        self._index = index
        self._num_as_predicted = 0  # output tokens, from the first, that equal the prediction

    def continuation(self, num_tokens: int) -> list[int]:
        self._index.follow(self.token_ids)
        return self._prediction(num_tokens) or self._index.continuation(num_tokens)

    def _prediction(self, num_tokens: int) -> list[int]:
        """What is predicted next, as long as the output has been the prediction from the first token on."""
        predicted, begin = self.request.prediction_token_ids, len(self.request.prompt_token_ids)
        num_output = len(self.token_ids) - begin
        n = self._num_as_predicted
        while n < min(num_output, len(predicted)) and self.token_ids[begin + n] == predicted[n]:
            n += 1
        self._num_as_predicted = n
        return predicted[n : n + num_tokens] if n == num_output else []


def _session_key(request: Request) -> _SessionKey | None:
    """Tenants never see each other's text, not even through what is guessed quickly."""
    return None if request.session_id is None else (request.tenant, request.cache_salt, request.session_id)
