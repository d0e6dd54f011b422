"""From step times to a deployment's steady state: tokens per second and device, time per token, closed loop or not.

Two engines: aggregated (prompts and decodes share a worker's time) and disaggregated (prefill and decode workers).
Rates are means; queues are taken as stationary. Not responsible for: the search over layouts (frontier), or anything
that a simulation of the scheduler would see (sim).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tokenmill.cost.steptime.acceptance import acceptance_length
from tokenmill.cost.steptime.parallel import max_sequences
from tokenmill.cost.steptime.roofline import RooflineStepTime
from tokenmill.cost.steptime.shape import StepShape

#: Prefill workers are idle so much between batches (aiconfigurator's factor for disaggregated prefill, 2026-07).
_PREFILL_BUSY = 0.9
#: Tokens of a prefill step of one attention group.
_CHUNK_TOKENS = 8192
_BISECTIONS = 24


@dataclass(frozen=True, slots=True)
class Traffic:
    """Mean lengths of requests, and the drafts of a decode step with the table of their acceptance."""

    isl: float
    osl: float
    num_drafts: int = 0
    acceptance: str = "mtp"

    @property
    def tokens_per_step(self) -> float:
        return acceptance_length(self.num_drafts, self.acceptance)

    @property
    def decode_context(self) -> float:
        return self.isl + self.osl / 2.0


@dataclass(frozen=True, slots=True)
class Steady:
    """What a deployment does. `tput_per_device`: input and output tokens per second over all its devices."""

    tput_per_device: float
    tpot_s: float
    num_in_decode: float
    requests_per_s: float
    num_devices: int


class Server:
    """One kind of worker under one traffic: rates of it, cheap to ask again and again."""

    def __init__(self, step_time: RooflineStepTime, traffic: Traffic) -> None:
        self.step_time = step_time
        self.traffic = traffic
        self.num_devices = step_time.parallel.num_devices
        self.max_batch = max_sequences(step_time.work, step_time.spec, step_time.parallel, traffic.decode_context)
        self.prompt_tokens_per_s = self._prompt_rate()

    def _prompt_rate(self) -> float:
        """Of the whole worker, steps full of prompts."""
        traffic, parallel = self.traffic, self.step_time.parallel
        groups = 1 if parallel.is_attention_split else parallel.num_devices
        num_seqs = groups * max(1, round(_CHUNK_TOKENS / traffic.isl))
        chunk = min(traffic.isl, _CHUNK_TOKENS)
        shape = StepShape.prefill(int(chunk), int((traffic.isl - chunk) / 2), num_seqs=num_seqs)
        return shape.num_prefill_tokens / self.step_time.step_s(shape)

    def tpot_s(self, batch: float) -> float:
        """Seconds per output token with `batch` sequences in decode, no prompts between."""
        traffic = self.traffic
        shape = StepShape.decode(batch, batch * traffic.decode_context, batch * traffic.num_drafts)
        return self.step_time.step_s(shape) / traffic.tokens_per_step

    def batch_at(self, tpot_s: float) -> float:
        """Most sequences in decode at which a token takes at most `tpot_s`; 0 when even one takes longer."""
        if self.max_batch < 1 or self.tpot_s(1.0) > tpot_s:
            return 0.0
        return _largest(lambda batch: self.tpot_s(batch) <= tpot_s, 1.0, float(self.max_batch))


@dataclass(frozen=True, slots=True)
class Aggregated:
    """One worker that does both; as many of them as there are devices behave alike."""

    server: Server

    @property
    def num_devices(self) -> int:
        return self.server.num_devices

    def at_concurrency(self, concurrency: float) -> Steady:
        """`concurrency` requests in flight at this worker; those beyond its memory wait."""
        traffic, server = self.server.traffic, self.server
        batch = min(concurrency, float(max(1, server.max_batch)))
        prompt_s = traffic.isl / server.prompt_tokens_per_s
        decode_s = traffic.osl * server.tpot_s(batch)
        requests_per_s = batch / (batch * prompt_s + decode_s)
        # Every sequence waits while prompts are computed, except its own.
        tpot_s = (batch / requests_per_s - prompt_s) / traffic.osl
        return _steady(traffic, requests_per_s, tpot_s, batch, server.num_devices)

    def at_interactivity(self, tokens_per_s: float) -> Steady | None:
        """Most throughput at this many tokens per second and user; None when out of reach."""
        if self.server.max_batch < 1 or 1 / self.at_concurrency(1).tpot_s < tokens_per_s:
            return None
        most = _largest(lambda n: self.at_concurrency(n).tpot_s <= 1 / tokens_per_s, 1.0, float(self.server.max_batch))
        return self.at_concurrency(most)


@dataclass(frozen=True, slots=True)
class Disaggregated:
    prefill: Server
    num_prefill: int
    decode: Server
    num_decode: int

    @property
    def num_devices(self) -> int:
        return self.num_prefill * self.prefill.num_devices + self.num_decode * self.decode.num_devices

    @property
    def prefill_requests_per_s(self) -> float:
        rate = self.num_prefill * self.prefill.prompt_tokens_per_s * _PREFILL_BUSY
        return rate / self.prefill.traffic.isl

    def at_concurrency(self, concurrency: float) -> Steady:
        """Closed loop: who is not in decode is in prefill or waits for it."""
        traffic = self.decode.traffic
        prompt_s = traffic.isl / self.prefill.prompt_tokens_per_s * self._prompts_at_once()
        most = min(concurrency, float(max(1, self.decode.max_batch) * self.num_decode))

        def requests_per_s(batch: float) -> float:
            return batch / (traffic.osl * self.decode.tpot_s(batch / self.num_decode))

        def is_possible(batch: float) -> bool:
            rate = requests_per_s(batch)
            return rate <= self.prefill_requests_per_s and batch + rate * prompt_s <= concurrency

        batch = _largest(is_possible, 0.0, most)
        batch = max(batch, 1e-6)
        tpot_s = self.decode.tpot_s(batch / self.num_decode)
        return _steady(traffic, requests_per_s(batch), tpot_s, batch, self.num_devices)

    def _prompts_at_once(self) -> float:
        """DP-attention prefill computes one prompt per device at a time: a prompt takes as many times longer."""
        return 1.0 if self.prefill.step_time.parallel.is_attention_split else float(self.prefill.num_devices)

    def at_interactivity(self, tokens_per_s: float) -> Steady | None:
        batch = self.decode.batch_at(1 / tokens_per_s)
        return None if batch == 0 else self.with_batch(batch)

    def with_batch(self, batch: float, *, is_fed: bool = False) -> Steady:
        """`batch` sequences per decode worker at most; fewer where prefill cannot feed them, unless `is_fed`."""
        traffic = self.decode.traffic
        rate = self.num_decode * batch / (traffic.osl * self.decode.tpot_s(batch))
        fed = rate if is_fed else min(rate, self.prefill_requests_per_s)
        return _steady(traffic, fed, self.decode.tpot_s(batch), batch * self.num_decode, self.num_devices)


@dataclass(slots=True)
class Servers:
    """Servers by layout and drafts, made once."""

    step_times: dict[str, RooflineStepTime]
    made: dict[tuple[str, Traffic], Server] = field(default_factory=dict)

    def get(self, layout: str, traffic: Traffic) -> Server:
        key = (layout, traffic)
        if key not in self.made:
            self.made[key] = Server(self.step_times[layout], traffic)
        return self.made[key]


def _steady(traffic: Traffic, requests_per_s: float, tpot_s: float, batch: float, num_devices: int) -> Steady:
    tput = requests_per_s * (traffic.isl + traffic.osl) / num_devices
    return Steady(tput, tpot_s, batch, requests_per_s, num_devices)


def _largest(is_possible: Callable[[float], bool], low: float, high: float) -> float:
    """Largest number in [low, high] for which `is_possible`, which must be true up to it and false beyond."""
    if is_possible(high):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return low
