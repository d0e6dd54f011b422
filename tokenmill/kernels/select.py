"""Which implementation of each op this process uses; chosen once at load, visible, with the reason.

Not responsible for: reading the machine (infra), the arithmetic (kernels/<op>).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenmill.kernels.attention import cpu as attention_cpu
from tokenmill.kernels.attention import reference as attention_reference
from tokenmill.kernels.attention.api import AttentionKernel
from tokenmill.kernels.embedding import cpu as embedding_cpu
from tokenmill.kernels.embedding import reference as embedding_reference
from tokenmill.kernels.embedding.api import Embedding
from tokenmill.kernels.linear import cpu as linear_cpu
from tokenmill.kernels.linear import reference as linear_reference
from tokenmill.kernels.linear.api import LinearKernel
from tokenmill.kernels.rms_norm import cpu as rms_norm_cpu
from tokenmill.kernels.rms_norm import reference as rms_norm_reference
from tokenmill.kernels.rms_norm.api import RMSNorm
from tokenmill.kernels.rope import cpu as rope_cpu
from tokenmill.kernels.rope import reference as rope_reference
from tokenmill.kernels.rope.api import Rope
from tokenmill.kernels.silu_mul import cpu as silu_mul_cpu
from tokenmill.kernels.silu_mul import reference as silu_mul_reference
from tokenmill.kernels.silu_mul.api import SiluMul

OPS = ("attention", "embedding", "linear", "rms_norm", "rope", "silu_mul")


@dataclass(frozen=True, slots=True)
class Choice:
    """`name`: reference or cpu; `reason`: for doctor, the log and results."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation per op, and why each was chosen."""

    attention: AttentionKernel
    embedding: Embedding
    linear: LinearKernel
    rms_norm: RMSNorm
    rope: Rope
    silu_mul: SiluMul
    choices: dict[str, Choice]


def select_kernels(*, deterministic: bool, dtype: torch.dtype = torch.bfloat16) -> Kernels:
    """
    deterministic   reference kernels, whose rows never depend on the rest of the batch
    dtype           of the weights: decides whether this CPU can multiply packed ones
    """
    if deterministic:
        reason = "deterministic: same bits whatever else is in the batch"
        return Kernels(
            attention=attention_reference.ReferenceAttention(),
            embedding=embedding_reference.embedding,
            linear=linear_reference.ReferenceLinear,
            rms_norm=rms_norm_reference.rms_norm,
            rope=rope_reference.rope,
            silu_mul=silu_mul_reference.silu_mul,
            choices={op: Choice("reference", reason) for op in OPS},
        )
    return Kernels(
        attention=attention_cpu.CpuAttention(),
        embedding=embedding_cpu.embedding,
        linear=linear_cpu.make,
        rms_norm=rms_norm_cpu.rms_norm,
        rope=rope_cpu.rope,
        silu_mul=silu_mul_cpu.silu_mul,
        choices={op: Choice("cpu", _cpu_reason(op, dtype)) for op in OPS},
    )


def _cpu_reason(op: str, dtype: torch.dtype) -> str:
    if op != "linear":
        return "batched torch operations"
    if linear_cpu.can_pack(dtype):
        return "oneDNN with weights packed at load"
    return f"plain torch: oneDNN does not multiply packed {str(dtype).removeprefix('torch.')} weights on this CPU"
