"""How one worker spreads a model over its devices, and whether it fits their memory. Not responsible for: time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.core.work_description import WorkDescription
from tokenmill.infra.device_spec import DeviceSpec

#: Memory that neither weights nor cache may use: activations, graphs, communication buffers (aiconfigurator: 3.5 GB
#: beside 0.4 GB of NCCL buffers), and the share of memory that engines leave alone.
_RESERVE_BYTES, _USABLE_SHARE = 4e9, 0.92
_FORM = re.compile(r"(?P<kind>dep|tep|tp|dp|ep)(?P<size>\d+)")


@dataclass(frozen=True, slots=True)
class Parallel:
    """
    num_devices         of one worker
    is_attention_split  True: tensor-parallel attention; False: every device has its own sequences (DP attention)
    is_expert_split     experts live on single devices and tokens travel to them; False: each expert is cut in slices
    """

    num_devices: int = 1
    is_attention_split: bool = True
    is_expert_split: bool = False

    @classmethod
    def parse(cls, text: str) -> Parallel:
        """tp8 (all by tensor), tep8 (experts apart, attention by tensor), dep8 (experts apart, attention by data)."""
        match = _FORM.fullmatch(text.strip().lower())
        if match is None or not int(match["size"]):
            raise ConfigError(f"layout {text!r} is unknown: write tp8, tep8 or dep8, with the devices of one worker")
        kind, size = match["kind"], int(match["size"])
        return cls(size, is_attention_split=kind in ("tp", "tep"), is_expert_split=kind in ("dep", "ep", "tep"))

    def __str__(self) -> str:
        kind = {(True, False): "tp", (True, True): "tep", (False, True): "dep", (False, False): "dp"}
        return f"{kind[self.is_attention_split, self.is_expert_split]}{self.num_devices}"

    def dense_copies(self) -> int:
        """Devices by which the weights met by every token are divided."""
        return self.num_devices if self.is_attention_split else 1


def weight_bytes_per_device(work: WorkDescription, parallel: Parallel) -> float:
    dense = work.dense_bytes + work.head_bytes + work.embedding_bytes
    return dense / parallel.dense_copies() + (work.expert_bytes + work.draft_bytes) / parallel.num_devices


def usable_bytes(spec: DeviceSpec) -> float:
    memory = (spec.usable_memory_bytes or spec.memory_bytes).value
    return memory * _USABLE_SHARE - _RESERVE_BYTES


def cache_bytes_per_device(work: WorkDescription, spec: DeviceSpec, parallel: Parallel) -> float:
    """What is left for caches; negative when the weights alone do not fit."""
    return usable_bytes(spec) - weight_bytes_per_device(work, parallel)


def max_sequences(work: WorkDescription, spec: DeviceSpec, parallel: Parallel, context: float) -> int:
    """Sequences of `context` tokens that one worker holds; 0 when the weights leave no room."""
    free = cache_bytes_per_device(work, spec, parallel)
    if parallel.is_attention_split:
        share = work.kv_bytes(context) / min(parallel.num_devices, work.kv_shards)
        return max(0, int(free / share))
    return max(0, int(free / work.kv_bytes(context))) * parallel.num_devices


def check_fits(work: WorkDescription, spec: DeviceSpec, parallel: Parallel, context: float | None = None) -> None:
    """ResourceError telling by how much the weights (or one sequence of `context` tokens) do not fit."""
    needed, usable = weight_bytes_per_device(work, parallel), usable_bytes(spec)
    if needed > usable:
        raise ResourceError(
            f"{work.name} as {parallel} needs {needed / 1e9:.1f} GB of weights per {spec.key}, which has "
            f"{usable / 1e9:.1f} GB to give: {(needed - usable) / 1e9:.1f} GB too much; use {fewest(work, spec)} "
            "or more devices per worker, or a lower precision"
        )
    if context is not None and max_sequences(work, spec, parallel, context) < 1:
        raise ResourceError(
            f"{work.name} as {parallel} on {spec.key} leaves {(usable - needed) / 1e9:.2f} GB for caches, and one "
            f"sequence of {context:.0f} tokens holds {work.kv_bytes(context) / 1e9:.2f} GB: use more devices per worker"
        )


def fewest(work: WorkDescription, spec: DeviceSpec) -> int:
    """Devices that a tensor-parallel worker needs at least; a power of two."""
    num = 1
    while cache_bytes_per_device(work, spec, Parallel(num)) <= 0:
        num *= 2
    return num
