"""The launcher seam: start, end and watch processes somewhere. Which ones and when: supervisor.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ended:
    """`exit_code` is negative when a signal ended it."""

    name: str
    exit_code: int


class Launcher(Protocol):
    """Holds at most one process per name. All calls come from one asyncio loop."""

    async def launch(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
        """Start it, with `env` added to the environment, and return its pid. Spawned, never forked from our state."""
        ...

    def terminate(self, name: str) -> None:
        """Ask it to go; nothing happens when it has gone."""
        ...

    def kill(self, name: str) -> None:
        """End it and everything it started, now; nothing happens when it has gone."""
        ...

    async def next_end(self) -> Ended:
        """Wait for the next process that ends, each reported once."""
        ...

    async def close(self) -> None:
        """Kill whatever still runs and wait for its end."""
        ...
