"""Messages between hosts on virtual time: latency, links that fill up, and what goes wrong on the way.

A host's link carries one message after the other; a connection keeps their order unless told to be late. What is lost
is lost in silence; numbering and time-outs of the production code are there to notice. Pure: randomness is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tokenmill.sim.events import EventQueue


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """
    latency_s      from one host to another, when nothing is in the way
    bytes_per_s    of each host's link, each way
    """

    latency_s: float = 50e-6
    bytes_per_s: float = 12.5e9


@dataclass(slots=True)
class Trouble:
    """Chances per message of one host's connection, while it lasts."""

    loss: float = 0.0
    copy: float = 0.0
    late: float = 0.0
    late_s: float = 0.0

    @property
    def is_none(self) -> bool:
        return self.loss == self.copy == self.late == 0.0


class Network:
    """Hosts are names; each has a link to a switch that is never the bottleneck."""

    def __init__(self, queue: EventQueue, config: NetworkConfig, rng: Random) -> None:
        self._queue = queue
        self._config = config
        self._rng = rng
        self._out_free_s: dict[str, float] = {}
        self._in_free_s: dict[str, float] = {}
        self._last_s: dict[tuple[str, str], float] = {}
        self._troubles: dict[str, Trouble] = {}
        self._cut_off: set[str] = set()
        self.num_lost = self.num_copied = self.num_late = 0
        self.bytes_sent = 0

    def send(self, source: str, target: str, num_bytes: int, arrive: Callable[[], None]) -> None:
        """`arrive` is called when the message is there, once, twice or never."""
        self.bytes_sent += num_bytes
        if source in self._cut_off or target in self._cut_off:
            self.num_lost += 1
            return
        trouble = self._troubles.get(source) or self._troubles.get(target)
        if trouble is None:
            self._queue.at(self._arrival_s(source, target, num_bytes), arrive)
            return
        if self._rng.random() < trouble.loss:
            self.num_lost += 1
            return
        arrival_s = self._arrival_s(source, target, num_bytes)
        if self._rng.random() < trouble.late:
            self.num_late += 1
            arrival_s += self._rng.random() * trouble.late_s
        self._queue.at(arrival_s, arrive)
        if self._rng.random() < trouble.copy:
            self.num_copied += 1
            self._queue.at(arrival_s + self._rng.random() * self._config.latency_s, arrive)

    def _arrival_s(self, source: str, target: str, num_bytes: int) -> float:
        """Both links are taken for as long as the message passes; order within a connection is kept."""
        seconds, now_s = num_bytes / self._config.bytes_per_s, self._queue.now()
        out_s = max(now_s, self._out_free_s.get(source, 0.0)) + seconds
        self._out_free_s[source] = out_s
        in_s = max(out_s, self._in_free_s.get(target, 0.0) + seconds)
        self._in_free_s[target] = in_s
        arrival_s = max(in_s + self._config.latency_s, self._last_s.get((source, target), 0.0))
        self._last_s[source, target] = arrival_s
        return arrival_s

    # -- trouble --

    def set_trouble(self, host: str, trouble: Trouble) -> None:
        if trouble.is_none:
            self._troubles.pop(host, None)
        else:
            self._troubles[host] = trouble

    def cut_off(self, host: str) -> None:
        """A partition: nothing goes to this host or comes from it."""
        self._cut_off.add(host)

    def heal(self, host: str) -> None:
        self._cut_off.discard(host)
