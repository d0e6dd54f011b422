"""The router seam: given a request and the ready workers of its model, say where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot


@dataclass(frozen=True, slots=True)
class Placement:
    """The choice made. `reason` is for people: traces and debug logs."""

    worker_id: str
    reason: str = ""


class RouterPolicy(Protocol):
    """Built by its class with the one keyword argument `seed`; registered under `tokenmill.router_policies`.

    Conformance: `operations.router.conformance.check_router_policy`.
    """

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        """Pick one of `snapshot.members` (never empty).

        Pure: no clock, no I/O, no global randomness; the same seed and the same calls give the same choices.
        Ties are broken by the seed. Called once per placement, also when a request is placed again after it
        lost its worker. What earlier choices did to the load is already in the snapshot.
        """
        ...
