"""The few factors between a device's peaks and what engines reach; fitted ones are marked and dated.

Not responsible for: peaks (infra catalogue), how they combine into a step (roofline).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenmill.infra.device_spec import DeviceKind, DeviceSpec


@dataclass(frozen=True, slots=True)
class Efficiency:
    """
    compute         share of the peak that big products reach
    memory          share of peak bandwidth for dense weights and caches
    expert_memory   the same for expert weights when few tokens meet each
    link            share of the links' peak that collectives reach
    op_s            fixed time of one operation of a layer: launch, synchronisation, filling the device
    hop_s           fixed time of one all-reduce
    exchange_hop_s  fixed time of one dispatch or combine of expert parallelism
    overlap         share of communication that is hidden behind compute
    step_s          fixed time per step outside the layers: scheduler, sampler, hand-over
    range_factor    predictions of seconds are off by less than this factor four times of five
    """

    compute: float
    memory: float
    expert_memory: float
    link: float
    op_s: float
    hop_s: float
    exchange_hop_s: float
    overlap: float = 0.0
    step_s: float = 0.0
    range_factor: float = 1.9

    def slowed(self, factor: float) -> Efficiency:
        """Software that takes `factor` times as long for everything."""
        return replace(
            self,
            compute=self.compute / factor,
            memory=self.memory / factor,
            expert_memory=self.expert_memory / factor,
            link=self.link / factor,
            op_s=self.op_s * factor,
            hop_s=self.hop_s * factor,
            exchange_hop_s=self.exchange_hop_s * factor,
            step_s=self.step_s * factor,
        )


#: memory: aiconfigurator's system files (2026-07); link: share assumed by published formula sets (2026-08); hop_s:
#: aiconfigurator's peer-to-peer latency. Fitted: see FITTED.
_NVIDIA = Efficiency(
    compute=0.28, memory=0.8, expert_memory=0.55, link=0.4, op_s=4.5e-6, hop_s=1e-5, exchange_hop_s=5.5e-5
)
_AMD = replace(_NVIDIA, compute=0.07)
_CPU = Efficiency(
    compute=0.4, memory=0.7, expert_memory=0.7, link=0.6, op_s=2e-6, hop_s=1e-4, exchange_hop_s=1e-4, step_s=1e-3
)

FITTED = ("compute", "expert_memory", "op_s", "exchange_hop_s", "link")


def default_efficiency(spec: DeviceSpec) -> Efficiency:
    if spec.kind is DeviceKind.CPU:
        return _CPU
    return _AMD if spec.key.startswith("mi") else _NVIDIA
