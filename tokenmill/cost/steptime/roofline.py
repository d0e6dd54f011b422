"""Step time from work, device and layout: the slower of compute and memory per part, plus communication and overhead.

Formulas per step, for one worker of n devices (T rows, all sequences; q rows of a sequence that verifies drafts):
    experts   max(bytes x hit(T) / n / bandwidth, 2 x active x T / n / flops)    hit(T) = 1 - (1 - k/E)^T; where experts
              live on single devices the fullest one is waited for: hit + sqrt(2 ln n x hit (1 - hit) n / E), at most 1
    dense     max(bytes / (n with tensor parallelism, else 1) / bandwidth, 2 x dense x T / n / flops)
    cache     max(read bytes of the sequences of a device / bandwidth, attention flops / n / flops)
    exchange  attention by data: rows x hidden x 3 bytes to each other rank a token visits (1 out in FP8, 2 back in
              bf16); attention by tensor: two all-reduces per layer; over the network outside the scale-up domain
    fixed     layers x launches x time of one, hops of collectives, time per step
Everything is precomputed at construction; a step is a handful of float operations. Pure. Not responsible for: memory
(parallel), how requests queue (serving).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError
from tokenmill.core.work_description import KeyRead, WorkDescription
from tokenmill.cost.steptime.efficiency import Efficiency, default_efficiency
from tokenmill.cost.steptime.parallel import Parallel
from tokenmill.cost.steptime.shape import Prediction, StepShape
from tokenmill.infra.device_spec import DeviceSpec

_DISPATCH_BYTES, _COMBINE_BYTES, _REDUCE_BYTES = 1.0, 2.0, 2.0
_PARTS = ("experts", "dense", "head", "cache", "exchange", "fixed")
#: Products with weights in a dtype that a device has no units for are expanded on the way and run in bf16.
_WIDER = {"fp4": "bf16", "fp8": "bf16"}


def peak_flops(spec: DeviceSpec, dtype: str) -> float:
    flops = spec.flops_per_s or {}
    wanted: str | None = dtype
    while wanted is not None:
        if wanted in flops:
            return flops[wanted].value
        wanted = _WIDER.get(wanted)
    known = ", ".join(flops) or "none"
    raise ConfigError(f"{spec.key} has no FLOP/s for {dtype} in the catalogue (known: {known}): add it, or calibrate")


@dataclass(frozen=True, slots=True)
class _Rates:
    """Seconds per unit on one device, and fixed seconds."""

    expert_s_per_hit: float
    expert_s_per_row: float
    dense_s: float
    dense_s_per_row: float
    head_s: float
    head_s_per_row: float
    cache_s_per_byte: float
    attention_s_per_flop: float
    exchange_s_per_row: float
    fixed_s: float
    draft_s_per_step: float


class RooflineStepTime:
    """See shape.StepTime. One worker of `parallel.num_devices` devices."""

    def __init__(
        self,
        work: WorkDescription,
        spec: DeviceSpec,
        parallel: Parallel | None = None,
        efficiency: Efficiency | None = None,
    ) -> None:
        self.work = work
        self.spec = spec
        self.parallel = parallel or Parallel()
        self.efficiency = efficiency or default_efficiency(spec)
        self._rates = _rates(work, spec, self.parallel, self.efficiency)
        self._miss = 1.0 - work.experts_per_token / work.num_experts if work.num_experts else 1.0
        self._spread = _spread(work, self.parallel)
        self._prefill_keys = tuple(_in_prefill(key) for key in work.keys)

    def step_s(self, shape: StepShape) -> float:
        if shape.num_tokens == 0:
            return 0.0
        total = sum(self._amounts(shape))
        return total + self._draft_s(shape, total) if shape.num_draft_tokens else total

    def _amounts(self, shape: StepShape) -> tuple[float, float, float, float, float, float]:
        """Seconds by part (see _PARTS), without drafting."""
        rates, rows = self._rates, shape.num_tokens
        return (
            max(rates.expert_s_per_hit * self._hit(rows), rates.expert_s_per_row * rows),
            max(rates.dense_s, rates.dense_s_per_row * rows),
            max(rates.head_s, rates.head_s_per_row * (shape.num_sampled + shape.num_draft_tokens)),
            self._cache_s(shape),
            rates.exchange_s_per_row * rows,
            rates.fixed_s,
        )

    def _hit(self, rows: float) -> float:
        """Share of the experts of the fullest device that some row visits (binomial, extreme of n devices)."""
        hit = 1.0 - self._miss**rows
        return min(1.0, hit + self._spread * math.sqrt(hit * (1.0 - hit))) if self._spread else hit

    def _cache_s(self, shape: StepShape) -> float:
        """Chunks attend at the mean context of their rows and read their cache once, at about its full length."""
        num_bytes = flops = 0.0
        decodes, chunks = shape.num_decode_seqs, shape.num_prefill_seqs
        if decodes:
            context = shape.decode_context_sum / decodes + 1.0
            rows = decodes + shape.num_draft_tokens
            for key in self.work.keys:
                num = min(key.most_keys, context / key.tokens_per_key)
                num_bytes += decodes * key.bytes_per_key * num
                flops += rows * key.flops_per_key * num
        if chunks:
            context = shape.prefill_context_sum / shape.num_prefill_tokens
            longest = context + shape.num_prefill_tokens / chunks / 2
            for key in self._prefill_keys:
                num_bytes += chunks * key.bytes_per_key * longest / key.tokens_per_key
                flops += shape.num_prefill_tokens * key.flops_per_key * min(key.most_keys, context / key.tokens_per_key)
        return max(num_bytes * self._rates.cache_s_per_byte, flops * self._rates.attention_s_per_flop)

    def _draft_s(self, shape: StepShape, step_s: float) -> float:
        """Each drafted position runs one more block and the head over the sequences that draft."""
        per_sequence = shape.num_draft_tokens / max(1, shape.num_decode_seqs)
        return per_sequence * (step_s / self.work.num_layers + self._rates.draft_s_per_step)

    def decode_seconds(self, batch: int, context_sum: float, num_steps: int = 1, num_draft_tokens: int = 0) -> float:
        if batch == 0 or num_steps == 0:
            return 0.0
        middle = context_sum + batch * (num_steps - 1) / 2.0
        return num_steps * self.step_s(StepShape(0, 0, 0.0, batch, middle, num_draft_tokens, batch))

    def seconds(self, shape: StepShape) -> Prediction:
        total, factor = self.step_s(shape), self.efficiency.range_factor
        return Prediction(total, total / factor, total * factor, self.parts(shape))

    def parts(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part; they sum to the step."""
        if shape.num_tokens == 0:
            return {}
        parts = dict(zip(_PARTS, self._amounts(shape), strict=True))
        if shape.num_draft_tokens:
            parts["drafts"] = self._draft_s(shape, sum(parts.values()))
        return parts


def _spread(work: WorkDescription, parallel: Parallel) -> float:
    if not (parallel.is_expert_split and work.num_experts and parallel.num_devices > 1):
        return 0.0
    return math.sqrt(2.0 * math.log(parallel.num_devices) * parallel.num_devices / work.num_experts)


def _in_prefill(key: KeyRead) -> KeyRead:
    flops = key.flops_per_key if key.prefill_flops_per_key is None else key.prefill_flops_per_key
    return KeyRead(flops, key.bytes_per_key, key.tokens_per_key, key.most_keys)


def _rates(work: WorkDescription, spec: DeviceSpec, parallel: Parallel, eff: Efficiency) -> _Rates:
    if spec.memory_bytes_per_s is None:
        raise ConfigError(f"{spec.key} has no memory bandwidth in the catalogue: add memory_gb_per_s, or calibrate")
    n, bandwidth = parallel.num_devices, spec.memory_bytes_per_s.value
    dense_flops = eff.compute * peak_flops(spec, work.dense_dtype)
    expert_flops = eff.compute * peak_flops(spec, work.expert_dtype)
    copies = parallel.dense_copies()
    cache_devices = min(n, work.kv_shards) if parallel.is_attention_split else n
    head_flops = eff.compute * peak_flops(spec, "bf16")
    return _Rates(
        expert_s_per_hit=work.expert_bytes / n / (eff.expert_memory * bandwidth),
        expert_s_per_row=2.0 * work.active_expert_params / n / expert_flops,
        dense_s=work.dense_bytes / copies / (eff.memory * bandwidth),
        dense_s_per_row=2.0 * work.dense_params / n / dense_flops,
        head_s=work.head_bytes / copies / (eff.memory * bandwidth),
        head_s_per_row=2.0 * work.head_params / n / head_flops,
        cache_s_per_byte=1.0 / cache_devices / (eff.memory * bandwidth),
        attention_s_per_flop=1.0 / n / (eff.compute * peak_flops(spec, work.attention_dtype)),
        exchange_s_per_row=(1.0 - eff.overlap) * _exchange_s_per_row(work, spec, parallel, eff),
        fixed_s=eff.step_s + work.num_layers * work.ops_per_layer * eff.op_s + _hop_s(work, parallel, eff),
        draft_s_per_step=0.0 if not work.draft_params else work.head_bytes / copies / (eff.memory * bandwidth),
    )


def _hop_s(work: WorkDescription, parallel: Parallel, eff: Efficiency) -> float:
    """Two collectives per layer. With split attention every device has all rows: all-reduces; else rows travel."""
    if parallel.num_devices == 1:
        return 0.0
    if parallel.is_attention_split:
        return 2 * work.num_layers * eff.hop_s
    return 2 * work.num_moe_layers * eff.exchange_hop_s


def _exchange_s_per_row(work: WorkDescription, spec: DeviceSpec, parallel: Parallel, eff: Efficiency) -> float:
    """Seconds that one row of the worker's batch spends on links; devices send at the same time."""
    n = parallel.num_devices
    if n == 1:
        return 0.0
    inside = min(n, spec.domain_size)
    if parallel.is_attention_split:
        reduced = 2 * work.num_layers * 2.0 * (n - 1) / n * work.hidden_size * _REDUCE_BYTES
        return _link_s(reduced, 0.0, spec, eff) if inside == n else _link_s(0.0, reduced, spec, eff)
    visited = n * (1.0 - (1.0 - 1.0 / n) ** work.experts_per_token)
    sent = work.num_moe_layers * work.hidden_size * visited * (_DISPATCH_BYTES + _COMBINE_BYTES) / n
    return _link_s(sent * (inside - 1) / n, sent * (n - inside) / n, spec, eff)


def _link_s(inside_bytes: float, outside_bytes: float, spec: DeviceSpec, eff: Efficiency) -> float:
    seconds = 0.0
    if inside_bytes:
        seconds += inside_bytes / (eff.link * _bandwidth(spec, "scale_up_bytes_per_s", "scale_up_gb_per_s"))
    if outside_bytes:
        seconds += outside_bytes / (eff.link * _bandwidth(spec, "scale_out_bytes_per_s", "scale_out_gbit_per_s"))
    return seconds


def _bandwidth(spec: DeviceSpec, field: str, key: str) -> float:
    figure = getattr(spec, field)
    if figure is None:
        raise ConfigError(f"{spec.key} has no {key} in the catalogue, and this worker spans devices: add it")
    return float(figure.value)
