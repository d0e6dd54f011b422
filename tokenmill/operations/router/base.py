"""The router seam: given a request and the ready workers of its model, say where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot


@dataclass(frozen=True, slots=True)
class Placement:
    """The choice made. `reason` is for people: traces and debug logs.

    num_cached_tokens   of the prompt, what the worker is believed to hold; None: the policy did not look
    """

    worker_id: str
    reason: str = ""
    num_cached_tokens: int | None = None


class RouterPolicy(Protocol):
    """Built by its class with the one keyword argument `seed`; registered under `tokenmill.router_policies`.

    A policy that sets the class attribute `reads_knowledge = True` gets `snapshot.knowledge` (prefix index, step
    rates); workers are then asked to tell of their caches.
    Conformance: `operations.router.conformance.check_router_policy`.
    """

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        """Pick one of `snapshot.members` (never empty).

        Pure: no clock, no I/O, no global randomness; the same seed and the same calls give the same choices.
        `snapshot.knowledge` is read, never written. Ties are broken by the seed. Called once per placement, also when
        a request is placed again after it lost its worker. What earlier choices did to the load is already in the
        snapshot.
        """
        ...


def reads_knowledge(policy: RouterPolicy) -> bool:
    """Does somebody have to keep an index for it?"""
    return bool(getattr(policy, "reads_knowledge", False))
