"""`bench kernels`: the C kernels beside what this machine can do at most, measured in the same run.

Ceilings: a streaming read of memory, and loops of dot-product instructions on registers alone. A product cannot take
less than the larger of reading its weights and computing. Not responsible for: the kernels (kernels/native), printing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from tokenmill.bench.environment import describe_environment
from tokenmill.core.errors import ConfigError
from tokenmill.kernels.native.build import NativeUnavailableError
from tokenmill.kernels.native.library import (
    KV_FORMATS,
    PEAKS,
    AttentionStruct,
    Library,
    WeightStruct,
    load_library,
)
from tokenmill.kernels.native.linear import Activations, NativeLinear
from tokenmill.kernels.native.pack import PackedWeight, pack_fp4

FORMATS = ("bf16", "int8", "int4", "nvfp4")
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CACHE_BYTES = 96 * 2**20  # weights taken in turn, together beyond any cache
_READ_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class KernelBench:
    """
    outputs, inputs   of the weight that is multiplied
    threads           1: timed by the CPU time of the thread, which other programs hardly disturb; more: by the wall
    repeats           of everything, ceilings included, in turn; the best counts
    """

    outputs: int = 3072
    inputs: int = 576
    formats: tuple[str, ...] = FORMATS
    rows: tuple[int, ...] = ROWS
    threads: int = 1
    repeats: int = 3

    def check(self) -> None:
        for name in ("outputs", "inputs", "threads", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not possible: give 1 or more")
        unknown = [name for name in self.formats if name not in FORMATS]
        if unknown or not self.formats:
            raise ConfigError(f"--formats {','.join(unknown) or '(none)'} is not possible: choose {', '.join(FORMATS)}")
        if not self.rows or min(self.rows) < 1:
            raise ConfigError(f"--rows {self.rows} is not possible: give numbers of 1 or more")
        if self.inputs % 32:
            raise ConfigError(f"inputs={self.inputs} is not possible: give a multiple of 32")


@dataclass(slots=True)
class Ceilings:
    """Best seen in this run."""

    read_bytes_per_s: float = 0.0
    bf16_ops_per_s: float = 0.0
    int8_ops_per_s: float = 0.0

    def ops_per_s(self, format: str) -> float:
        return self.bf16_ops_per_s if format == "bf16" else self.int8_ops_per_s

    def bound_s(self, num_bytes: float, ops: float, format: str) -> float:
        return max(num_bytes / self.read_bytes_per_s, ops / self.ops_per_s(format))


@dataclass(frozen=True, slots=True)
class Subject:
    """One kernel at one size. `run` does `num_runs` calls, on weights or caches that are not in the cache."""

    op: str
    format: str
    rows: int
    num_bytes: int
    ops: float
    num_runs: int
    run: Callable[[], None]


def run_kernel_bench(bench: KernelBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; the result is JSON-able."""
    bench.check()
    try:
        library = load_library(bench.threads)
    except NativeUnavailableError as error:
        raise ConfigError(f"bench kernels needs the C kernels: {error}") from None
    threads = library.num_threads()
    if threads != bench.threads:
        raise ConfigError(f"--threads {bench.threads}: this process already has a pool of {threads}; start another one")
    clock = time.thread_time if threads == 1 else time.perf_counter
    ceilings, buffer = Ceilings(), torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    measured: list[tuple[Subject, float]] = []
    for name, make in _makers(bench, library):
        tell(name)
        for subject in make():
            _measure_ceilings(ceilings, library, buffer, clock, threads)
            measured.append((subject, _best_s(subject, bench.repeats, clock)))
    return {
        "bench": "kernels",
        "settings": asdict(bench),
        "environment": describe_environment(),
        "kernels": {"isa": library.built.isa, "compiler": library.built.compiler, "num_threads": threads},
        "ceilings": asdict(ceilings),
        "results": [_figures(subject, seconds, ceilings) for subject, seconds in measured],
    }


def _figures(subject: Subject, seconds: float, ceilings: Ceilings) -> dict[str, Any]:
    bytes_per_s, ops_per_s = subject.num_bytes / seconds, subject.ops / seconds
    return {
        "op": subject.op,
        "format": subject.format,
        "rows": subject.rows,
        "seconds": seconds,
        "bytes_per_s": bytes_per_s,
        "ops_per_s": ops_per_s,
        "read_share": bytes_per_s / ceilings.read_bytes_per_s,
        "ops_share": ops_per_s / ceilings.ops_per_s(subject.format),
        "bound_share": ceilings.bound_s(subject.num_bytes, subject.ops, subject.format) / seconds,
    }


def _best_s(subject: Subject, repeats: int, clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    best = math.inf
    for _ in range(repeats):
        began_s = clock()
        subject.run()
        best = min(best, clock() - began_s)
    return best / subject.num_runs


def _measure_ceilings(
    ceilings: Ceilings, library: Library, buffer: torch.Tensor, clock: Callable[[], float], threads: int
) -> None:
    def rate(call: Callable[[], int]) -> float:
        began_s = clock()
        amount = call()
        return amount / (clock() - began_s)

    def products(kind: str) -> float:
        return rate(lambda: library.peak(PEAKS[kind], 16 * threads, 50_000))

    reads = rate(lambda: library.read(buffer.data_ptr(), buffer.nbytes))
    ceilings.read_bytes_per_s = max(ceilings.read_bytes_per_s, reads)
    ceilings.bf16_ops_per_s = max(ceilings.bf16_ops_per_s, products("bf16"))
    ceilings.int8_ops_per_s = max(ceilings.int8_ops_per_s, products("int8"))


def _makers(bench: KernelBench, library: Library) -> Iterator[tuple[str, Callable[[], Iterator[Subject]]]]:
    for format in bench.formats:
        yield f"products with {format} weights", partial(_products, bench, library, format)
    yield "attention of 32 decodes", partial(_decodes, library)
    yield "attention of a prefill", partial(_prefill, library)


def _products(bench: KernelBench, library: Library, format: str) -> Iterator[Subject]:
    n, k = bench.outputs, bench.inputs
    packed = _packed(library, format, n, k)
    copies = [packed.data, *(packed.data.clone() for _ in range(_CACHE_BYTES // packed.data.nbytes))]
    layer = NativeLinear.of_packed(library, packed, n, k)
    structs = [layer.struct() for _ in copies]
    for struct, data in zip(structs, copies, strict=True):
        struct.weight = data.data_ptr()
    for rows in bench.rows:
        x, out = torch.randn(rows, k), torch.empty(rows, n)
        act = Activations(format, rows, packed.inputs)
        act.quantise(library, x)
        used = structs if rows < 64 else structs[:8]
        run = partial(_multiply, library, used, act, out)
        yield Subject("product", format, rows, packed.num_bytes, 2.0 * rows * n * k, len(used), run)
        yield _activation(library, act, x, format)


def _multiply(library: Library, weights: Sequence[WeightStruct], act: Activations, out: torch.Tensor) -> None:
    rows, n = out.shape
    for weight in weights:
        library.gemm(byref(weight), rows, *act.pointers, out.data_ptr(), n)


def _activation(library: Library, act: Activations, x: torch.Tensor, format: str) -> Subject:
    """Norm and conversion to what the product reads."""
    norm = torch.ones(x.shape[1])
    num_runs = max(1, 4096 // len(x))

    def run() -> None:
        for _ in range(num_runs):
            act.quantise(library, x, norm=norm, eps=1e-5)

    return Subject("norm, activation", format, len(x), x.nbytes + act.y.nbytes, 4.0 * x.numel(), num_runs, run)


def _packed(library: Library, format: str, n: int, k: int) -> PackedWeight:
    if format != "nvfp4":
        return NativeLinear(library, format, torch.randn(n, k)).packed
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    return pack_fp4(library, codes, torch.ones(n, k // 16).to(torch.float8_e4m3fn), "nvfp4")


def _decodes(library: Library) -> Iterator[Subject]:
    """32 sequences of 512 tokens, 9 query and 3 key heads of 64 channels, as in SmolLM2."""
    for kv_dtype in KV_FORMATS:
        yield _attention(library, "attention, decode", kv_dtype, num_seqs=32, context=511, rows=1, num_layers=8)


def _prefill(library: Library) -> Iterator[Subject]:
    for kv_dtype in KV_FORMATS:
        yield _attention(library, "attention, prefill", kv_dtype, num_seqs=1, context=0, rows=512, num_layers=2)


def _attention(
    library: Library, op: str, kv_dtype: str, *, num_seqs: int, context: int, rows: int, num_layers: int
) -> Subject:
    heads, kv_heads, d = 9, 3, 64
    groups = -(-(context + rows) // 16)
    row_bytes = 2 * d if kv_dtype == "bf16" else d + 4
    caches = torch.zeros(num_layers, 2, num_seqs * groups, kv_heads, 16 * row_bytes, dtype=torch.uint8)
    caches.fill_(1)
    table = torch.randperm(num_seqs * groups).view(num_seqs, groups)
    units = torch.tensor(
        [(b * rows + t, min(16, rows - t), context + t, b) for b in range(num_seqs) for t in range(0, rows, 16)]
    )
    q = torch.randn(num_seqs * rows, heads, d).bfloat16()
    out = torch.empty(num_seqs * rows, heads, d)
    structs = [
        AttentionStruct(
            heads, kv_heads, d, 0, heads // kv_heads, KV_FORMATS[kv_dtype], q.data_ptr(), keys.data_ptr(),
            values.data_ptr(), units.data_ptr(), table.data_ptr(), groups, out.data_ptr(),
        )
        for keys, values in caches
    ]  # fmt: skip

    def run() -> None:
        keep = (units, table, q, out, caches)
        for struct in structs:
            library.attend(byref(struct), len(keep[0]))

    pairs = num_seqs * sum(context + i + 1 for i in range(rows))
    return Subject(op, kv_dtype, num_seqs * rows, caches[0].nbytes, 4.0 * pairs * heads * d, num_layers, run)
