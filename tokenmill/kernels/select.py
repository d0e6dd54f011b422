"""Which implementation of each op this process uses; chosen once at load, visible, with the reason.

Not responsible for: reading the machine (infra), the arithmetic (kernels/<op>).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

import torch

from tokenmill.core.errors import ConfigError
from tokenmill.kernels.attention import cpu as attention_cpu
from tokenmill.kernels.attention import reference as attention_reference
from tokenmill.kernels.attention.api import AttentionKernel
from tokenmill.kernels.embedding import cpu as embedding_cpu
from tokenmill.kernels.embedding import reference as embedding_reference
from tokenmill.kernels.embedding.api import Embedding
from tokenmill.kernels.linear import cpu as linear_cpu
from tokenmill.kernels.linear import quantized as linear_quantized
from tokenmill.kernels.linear import reference as linear_reference
from tokenmill.kernels.linear.api import LinearKernel, PackedLinearKernel
from tokenmill.kernels.native.build import NativeUnavailableError
from tokenmill.kernels.native.library import Library, load_library
from tokenmill.kernels.native.quantized import make_linear, packed_linear
from tokenmill.kernels.quantized.packed import SCHEMES, Scheme
from tokenmill.kernels.rms_norm import cpu as rms_norm_cpu
from tokenmill.kernels.rms_norm import reference as rms_norm_reference
from tokenmill.kernels.rms_norm.api import RMSNorm
from tokenmill.kernels.rope import cpu as rope_cpu
from tokenmill.kernels.rope import reference as rope_reference
from tokenmill.kernels.rope.api import Rope
from tokenmill.kernels.silu_mul import cpu as silu_mul_cpu
from tokenmill.kernels.silu_mul import reference as silu_mul_reference
from tokenmill.kernels.silu_mul.api import SiluMul

log = logging.getLogger(__name__)

_FOUR_BITS = ("int4", "nvfp4", "mxfp4")
_NATIVE_FORMATS = ("bf16", "int8", *_FOUR_BITS)
OPS = ("attention", "embedding", "linear", "rms_norm", "rope", "silu_mul")


@dataclass(frozen=True, slots=True)
class Choice:
    """`name`: reference, cpu or native_<weight format>; `reason`: for doctor, the log and results."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The C kernels, loaded. A model takes them if it can (Kernels.on_native). weight_format: see native/pack."""

    library: Library
    weight_format: str

    @property
    def head_format(self) -> str:
        """Four bits are too few for the output head."""
        return "int8" if self.weight_format in _FOUR_BITS else self.weight_format

    @property
    def load_dtype(self) -> torch.dtype:
        """Quantise from what the checkpoint holds, not from a rounded copy."""
        return torch.bfloat16 if self.weight_format == "bf16" else torch.float32

    @property
    def reason(self) -> str:
        built = self.library.built
        return f"C kernels ({built.isa}, {built.compiler}), {self.weight_format} weights, one call per step"


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation per op, and why each was chosen.

    packed_linear   for weights that a checkpoint holds quantised
    weight_format   what plain weights become: bf16 (as they are) or a quantised one
    """

    attention: AttentionKernel
    embedding: Embedding
    linear: LinearKernel
    rms_norm: RMSNorm
    rope: Rope
    silu_mul: SiluMul
    choices: dict[str, Choice]
    native: NativeKernels | None = None
    head: LinearKernel | None = None
    packed_linear: PackedLinearKernel = linear_quantized.QuantizedLinear
    weight_format: str = "bf16"
    allows_native: bool = False  # a model with C kernels of its own may use them in dtypes that `native` does not cover

    @property
    def head_linear(self) -> LinearKernel:
        """For the output head, which is more sensitive than other layers; usually the same as `linear`."""
        return self.head or self.linear

    def on_native(self) -> Kernels:
        """For a model whose whole step runs in the C kernels: its layers pack weights for them."""
        assert self.native is not None
        choice = Choice(f"native_{self.native.weight_format}", self.native.reason)
        return replace(
            self,
            linear=partial(make_linear, self.native.library, self.native.weight_format),
            head=partial(make_linear, self.native.library, self.native.head_format),
            packed_linear=partial(packed_linear, self.native.library),
            choices=dict.fromkeys(OPS, choice),
        )

    def on_packed(self) -> Kernels:
        """For a model that keeps weights as its checkpoint packs them."""
        before = self.choices["linear"]
        how = (
            "C kernels where they have the format" if before.name.startswith("native") else "expanded for each product"
        )
        choice = Choice("packed", f"weights as the checkpoint packs them, {how}")
        return replace(self, choices=self.choices | {"linear": choice})


def select_kernels(
    *,
    deterministic: bool,
    dtype: torch.dtype = torch.bfloat16,
    backend: str = "auto",
    weight_format: str = "bf16",
) -> Kernels:
    """
    deterministic   reference kernels, whose rows never depend on the rest of the batch
    dtype           of the weights: decides what this CPU can multiply
    backend         auto (native where it can be built), native, or cpu (torch)
    weight_format   bf16 (as they are), int8, int4, nvfp4, mxfp4, fp8 or fp8_block: what weights become. Native
                    kernels have all but fp8; elsewhere packed weights are expanded for each product (slow)

    ConfigError when native kernels were asked for, by name or by format, and cannot be had.
    """
    if deterministic:
        if backend == "native":
            raise ConfigError("deterministic runs on the reference kernels: leave out --kernels")
        reason = "deterministic: same bits whatever else is in the batch"
        return _quantized(_reference(reason), weight_format)
    native = _native(dtype, backend, weight_format)
    kernels = Kernels(
        attention=attention_cpu.CpuAttention(),
        embedding=embedding_cpu.embedding,
        linear=linear_cpu.make,
        rms_norm=rms_norm_cpu.rms_norm,
        rope=rope_cpu.rope,
        silu_mul=silu_mul_cpu.silu_mul,
        choices={op: Choice("cpu", _cpu_reason(op, dtype)) for op in OPS},
        native=native,
        allows_native=backend != "cpu" and weight_format == "bf16",
    )
    return kernels if native is not None else _quantized(kernels, weight_format)


def _reference(reason: str) -> Kernels:
    return Kernels(
        attention=attention_reference.ReferenceAttention(),
        embedding=embedding_reference.embedding,
        linear=linear_reference.ReferenceLinear,
        rms_norm=rms_norm_reference.rms_norm,
        rope=rope_reference.rope,
        silu_mul=silu_mul_reference.silu_mul,
        choices={op: Choice("reference", reason) for op in OPS},
    )


def _quantized(kernels: Kernels, weight_format: str) -> Kernels:
    """Weights packed between steps and expanded for each product; the output head stays as it is."""
    if weight_format == "bf16":
        return kernels
    scheme: Scheme = next(scheme for scheme in SCHEMES if scheme == weight_format)
    choice = Choice(f"expanded_{scheme}", f"{scheme} weights, expanded for each product (reference)")
    return replace(
        kernels,
        linear=partial(linear_quantized.make, scheme),
        head=kernels.linear,
        choices=kernels.choices | {"linear": choice},
        weight_format=weight_format,
    )


def _native(dtype: torch.dtype, backend: str, weight_format: str) -> NativeKernels | None:
    is_wanted = backend == "native" or weight_format != "bf16"
    if weight_format not in _NATIVE_FORMATS:
        if backend == "native":
            possible = ", ".join(_NATIVE_FORMATS[1:])
            raise ConfigError(f"native kernels have no {weight_format}: choose {possible}, or leave --kernels at auto")
        return None
    if backend == "cpu":
        return None
    if dtype != torch.bfloat16:
        if is_wanted:
            raise ConfigError(f"native kernels compute in bfloat16, not {dtype}: leave --dtype at auto")
        return None
    try:
        return NativeKernels(load_library(torch.get_num_threads()), weight_format)
    except NativeUnavailableError as error:
        if is_wanted:
            raise ConfigError(f"native kernels cannot be used: {error}") from None
        log.warning("falling back to torch kernels: %s", error)
        return None


def _cpu_reason(op: str, dtype: torch.dtype) -> str:
    if op != "linear":
        return "batched torch operations"
    if linear_cpu.can_pack(dtype):
        return "oneDNN with weights packed at load"
    return f"plain torch: oneDNN does not multiply packed {str(dtype).removeprefix('torch.')} weights on this CPU"
