"""How likely drafts stay: by position over all requests, and better or worse than that for each request. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

#: A count loses this share of its weight with each new verification: about the last 100 (30 of one request) matter.
_FORGET_ALL, _FORGET_ONE = 0.01, 0.03
#: Before anything is known of a position: half of the drafts that get there stay, worth so many verifications.
_PRIOR, _PRIOR_WEIGHT = 0.5, 2.0
#: So many verifications of a request count as much as what is known of all.
_TRUST = 16.0
_MOST = 0.99


@dataclass(slots=True)
class _Counts:
    """tried: drafts that were decided (those behind a rejected one were not), kept: those that stayed."""

    tried: float = 0.0
    kept: float = 0.0

    def add(self, tried: int, kept: int, forget: float) -> None:
        self.tried += tried - forget * self.tried
        self.kept += kept - forget * self.kept


@dataclass(slots=True)
class Acceptance:
    _at: list[_Counts] = field(default_factory=list)
    _all: _Counts = field(default_factory=_Counts)
    _of: dict[str, _Counts] = field(default_factory=dict)

    def record(self, request_id: str, num_drafted: int, num_accepted: int) -> None:
        num_decided = min(num_drafted, num_accepted + 1)
        while len(self._at) < num_decided:
            self._at.append(_Counts())
        for i in range(num_decided):
            self._at[i].add(1, i < num_accepted, _FORGET_ALL)
        self._all.add(num_decided, num_accepted, _FORGET_ALL)
        self._of.setdefault(request_id, _Counts()).add(num_decided, num_accepted, _FORGET_ONE)

    def forget(self, request_id: str) -> None:
        self._of.pop(request_id, None)

    def survivals(self, request_id: str, num_drafts: int) -> list[float]:
        """Probability that the first i + 1 drafts all stay, for i = 0 .. num_drafts - 1: never rising."""
        common = _rate(self._all, _PRIOR, _PRIOR_WEIGHT)
        own = _rate(self._of.get(request_id, _Counts()), common, _TRUST)
        out, alive = [], 1.0
        last = common
        for i in range(num_drafts):
            last = _rate(self._at[i], last, _PRIOR_WEIGHT) if i < len(self._at) else last
            alive *= _shifted(last, own, common)
            out.append(alive)
        return out


def _shifted(rate: float, own: float, common: float) -> float:
    """The rate of a position, its odds changed as a request's own odds differ from the common ones."""
    odds = rate / (1 - rate) * (own / (1 - own)) / (common / (1 - common))
    return min(_MOST, odds / (1 + odds))


def _rate(counts: _Counts, prior: float, weight: float) -> float:
    return (counts.kept + prior * weight) / (counts.tried + weight)
